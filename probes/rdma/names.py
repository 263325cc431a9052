"""What the files of a port's ``counters`` and ``hw_counters`` are: counters, gauges or settings, and how wide.

Sources: Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c,
drivers/infiniband/hw/{mlx5/counters.c,bnxt_re/hw_counters.c}, drivers/infiniband/sw/rxe/rxe_hw_counters.c of Linux 6.
"""

from __future__ import annotations

import re

SETTINGS = frozenset(("lifespan",))
"""Files that no hardware counts: ``lifespan`` says for how many milliseconds the kernel keeps the values."""

GAUGE_PREFIXES = ("active_", "watermark_")
"""bnxt_re counts its live objects in ``hw_counters``, too: those go up and down."""

SATURATES = {
    "symbol_error": 0xFFFF,
    "link_error_recovery": 0xFF,
    "link_downed": 0xFF,
    "port_rcv_errors": 0xFFFF,
    "port_rcv_remote_physical_errors": 0xFFFF,
    "port_rcv_switch_relay_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "port_xmit_constraint_errors": 0xFF,
    "port_rcv_constraint_errors": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
    "VL15_dropped": 0xFFFF,
    "port_xmit_wait": 0xFFFFFFFF,
}
"""Widths of the PortCounters attribute (InfiniBand specification 1, 16.1.3.5): at its end a counter stands still, and
what stands still there says nothing. Drivers with the extended attribute go beyond."""

WRAPS = frozenset(
    (
        "rx_write_requests", "rx_read_requests", "rx_atomic_requests", "rx_dct_connect", "out_of_buffer",
        "out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "packet_seq_err", "implied_nak_seq_err",
        "local_ack_timeout_err", "resp_local_length_error", "resp_cqe_error", "req_cqe_error",
        "req_remote_invalid_request", "req_remote_access_errors", "resp_remote_access_errors", "resp_cqe_flush_error",
        "req_cqe_flush_error", "req_transport_retries_exceeded", "req_rnr_retries_exceeded", "roce_adp_retrans",
        "roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps", "roce_slow_restart_trans",
    )
)  # fmt: skip
"""mlx5's queue counters: 32 bits in the adapter, which begin again at 0."""

HELP = {
    "rdma_port_xmit_data_total": "Data that left the port, in words of 4 bytes.",
    "rdma_port_rcv_data_total": "Data that reached the port, in words of 4 bytes.",
    "rdma_port_state": "Logical state of the port: 1 down, 2 init, 3 armed, 4 active.",
    "rdma_port_physical_state": "Physical state of the port: 3 disabled, 5 link up.",
    "rdma_port_rate_bytes_per_second": "Line rate of the port in each direction.",
    "rdma_port_info": "1; what the port is, in labels.",
    "netdev_speed_bytes_per_second": "Speed of the interface in each direction.",
    "netdev_carrier": "1 while the interface has a carrier.",
}

_GB_PER_S = re.compile(r"([0-9.]+) Gb/sec")


def is_gauge(name: str) -> bool:
    return name.startswith(GAUGE_PREFIXES)


def counted(name: str, value: int) -> bool:
    """Whether a value of ``counters/name`` is a count: one that stands at the counter's end is none."""
    return value != SATURATES.get(name)


def state_id(text: str | None) -> int | None:
    """The number of ``4: ACTIVE``."""
    number = (text or "").partition(":")[0]
    return int(number) if number.isdigit() else None


def rate_bytes(text: str | None) -> float | None:
    """Bytes a second of ``100 Gb/sec (4X EDR)``."""
    found = _GB_PER_S.match(text or "")
    return float(found.group(1)) * 1e9 / 8 if found else None
