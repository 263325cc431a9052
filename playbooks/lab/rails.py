"""RDMA ports as node_exporter shows an adapter's, or the target `rdma` the kernel's software device."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from .exposition import Family, LabelPairs

ADAPTER = {
    "gaps": "node_infiniband_out_of_sequence_packets_received",
    "naks": "node_infiniband_packet_sequence_errors",
    "timeouts": "node_infiniband_local_ack_timeout_errors",
    "lost_answers": "node_infiniband_implied_nak_seq_errors",
    "repeats": "node_infiniband_duplicate_requests_packets",
    "adaptive": "node_infiniband_roce_adp_retransmits",
    "marks": "node_infiniband_np_ecn_marked_roce_packets_received",
    "cuts": "node_infiniband_rp_cnp_packets_handled",
    "downs": "node_infiniband_link_downed",
}
SOFTWARE = {
    "gaps": "rdma_hw_out_of_seq_request",
    "retries": "rdma_hw_completer_retry_err",
    "repeats": "rdma_hw_duplicate_request",
    "downs": "rdma_hw_link_downed",
}
PACKET = {False: 4096, True: 1024}
"""Payload of a packet: the largest RoCE MTU, and what fits an Ethernet frame of 1500 bytes."""


@dataclass
class Rail:
    """One port. ``rates`` are marks a second by their key in ``ADAPTER`` or ``SOFTWARE``; ``counts`` what was counted.

    A software device tells packets instead of bytes, and its bytes are its interface's, too.
    """

    node: str
    device: str
    rate: float
    rng: Random
    software: bool = False
    rates: dict[str, float] = field(default_factory=dict)
    active: bool = True

    def __post_init__(self) -> None:
        self.target: LabelPairs = (
            (("instance", self.node), ("job", "rdma"))
            if self.software
            else (("instance", f"{self.node}:9100"), ("job", "node"))
        )
        self._names = SOFTWARE if self.software else ADAPTER
        self.counts: dict[str, float] = dict.fromkeys(self._names, 0.0)
        self._sent = self.rng.uniform(1e9, 1e13)
        self._received = self.rng.uniform(1e9, 1e13)

    def carry(self, received: float = 0.0, sent: float = 0.0) -> None:
        self._received += received
        self._sent += sent

    def flap(self) -> None:
        """The link goes down and comes back; the requests under way are asked again."""
        self.counts["downs"] += 1
        self.counts["repeats"] += self.rng.randint(8, 20)

    def observe(self, seconds: float) -> None:
        for key, rate in self.rates.items():
            self.counts[key] += round(seconds * rate * abs(self.rng.gauss(1.0, 0.25)))
        self.carry(self.rng.uniform(0, 4e3), self.rng.uniform(0, 4e3))

    def families(self) -> list[Family]:
        labels: LabelPairs = (("device", self.device), ("port", "1"))
        found = [Family(self._names[key], "counter", key).one(count, labels) for key, count in self.counts.items()]
        state = "rdma_port_state" if self.software else "node_infiniband_state_id"
        found.append(Family(state, "gauge", "State.").one(4.0 if self.active else 1.0, labels))
        rate = "rdma_port_rate_bytes_per_second" if self.software else "node_infiniband_rate_bytes_per_second"
        found.append(Family(rate, "gauge", "Line rate.").one(self.rate, labels))
        return [*found, *self._traffic(labels)]

    def _traffic(self, labels: LabelPairs) -> list[Family]:
        sent, received = round(self._sent), round(self._received)
        if not self.software:
            return [
                Family("node_infiniband_port_data_transmitted_bytes", "counter", "Sent.").one(sent, labels),
                Family("node_infiniband_port_data_received_bytes", "counter", "Received.").one(received, labels),
            ]
        packet, netdev = PACKET[True], (("device", "eth0"), ("rdma_device", self.device), ("rdma_port", "1"))
        return [
            Family("up", "gauge", "1 when the scrape succeeded.").one(1.0),
            Family("rdma_hw_sent_pkts", "counter", "Sent.").one(sent // packet, labels),
            Family("rdma_hw_rcvd_pkts", "counter", "Received.").one(received // packet, labels),
            Family("netdev_tx_bytes", "counter", "Sent.").one(sent, netdev),
            Family("netdev_rx_bytes", "counter", "Received.").one(received, netdev),
        ]
