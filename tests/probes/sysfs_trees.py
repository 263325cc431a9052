"""Sysfs trees for the tests: recorded ones laid out again, and adapters built from the kernel's own names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures" / "rdma"

MLX5_HW = (
    "duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err", "np_cnp_sent",
    "np_ecn_marked_roce_packets", "out_of_buffer", "out_of_sequence", "packet_seq_err", "req_cqe_error",
    "req_transport_retries_exceeded", "rnr_nak_retry_err", "roce_adp_retrans", "rp_cnp_handled", "rx_read_requests",
)  # fmt: skip
"""drivers/infiniband/hw/mlx5/counters.c."""
MLX5_PORT = (
    "link_downed", "port_rcv_data", "port_rcv_errors", "port_rcv_packets", "port_xmit_data", "port_xmit_discards",
    "port_xmit_packets", "port_xmit_wait", "symbol_error",
)  # fmt: skip
"""Documentation/ABI/stable/sysfs-class-infiniband."""
BNXT_HW = (
    "active_qps", "watermark_qps", "dup_req", "lifespan", "max_retry_exceeded", "missing_resp", "oos_drop_count",
    "rnr_naks_rcvd", "rx_bytes", "rx_cnp_pkts", "rx_ecn_marked_pkts", "rx_out_of_buffer", "rx_pkts",
    "rx_roce_discards", "rx_roce_errors", "seq_err_naks_rcvd", "to_retransmits", "tx_bytes", "tx_cnp_pkts", "tx_pkts",
    "tx_roce_discards",
)  # fmt: skip
"""drivers/infiniband/hw/bnxt_re/hw_counters.c."""
ETHTOOL = """NIC statistics:
     rx_packets: 7
     rx3_xdp_drop: 1
     rx_prio3_pause: 12
     rx_prio3_pause_duration: 340
     tx_vport_rdma_unicast_bytes: 4096
     outbound_pci_stalled_wr: 31
"""


def lay(root: Path, recorded: str, host: str = "") -> Path:
    """A recorded tree (``PATH VALUE`` a line) as files under ``root``."""
    for line in (FIXTURES / f"{recorded}.txt").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" ")
        put(root / name, value)
    if host:
        put(root / "hostname", host)
    return root


def put(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n", encoding="utf-8")
    return path


def port(
    root: Path,
    device: str,
    netdev: str,
    *,
    rate: str = "100 Gb/sec (4X EDR)",
    counters: Mapping[str, int] | None = None,
    hw: Mapping[str, int] | None = None,
) -> Path:
    """A RoCE port with an interface; the answer is the port's folder."""
    folder = root / "sys/class/infiniband" / device / "ports/1"
    attributes = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": rate, "link_layer": "Ethernet"}
    attributes |= {"gids/0": "fe80::1", "gid_attrs/ndevs/0": netdev, "gid_attrs/types/0": "IB/RoCE v1"}
    attributes |= {"gids/1": "::ffff:10.0.0.1", "gid_attrs/ndevs/1": netdev, "gid_attrs/types/1": "RoCE v2"}
    for name, value in attributes.items():
        put(folder / name, value)
    for name, count in (counters or {}).items():
        put(folder / "counters" / name, count)
    for name, count in (hw or {}).items():
        put(folder / "hw_counters" / name, count)
    put(root / "sys/class/net" / netdev / "statistics/rx_bytes", 1000)
    put(root / "sys/class/net" / netdev / "speed", 100_000)
    return folder


def mlx5(root: Path, device: str = "mlx5_0", netdev: str = "ens1f0np0", **counts: int) -> Path:
    """A ConnectX port: every counter 0 but those given."""
    values = dict.fromkeys((*MLX5_PORT, *MLX5_HW), 0) | counts
    put(root / "ethtool" / netdev, ETHTOOL)
    return port(
        root, device, netdev, counters={k: values[k] for k in MLX5_PORT}, hw={k: values[k] for k in MLX5_HW}
    )  # fmt: skip


def bnxt(root: Path, device: str = "bnxt_re0", netdev: str = "ens2f0np0", **counts: int) -> Path:
    """A NetXtreme-E port: no ``counters`` folder, every counter 0 but those given."""
    return port(root, device, netdev, hw=dict.fromkeys(BNXT_HW, 0) | counts)
