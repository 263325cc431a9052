"""``ethtool -S``: an adapter's own statistics, by the kernel's ioctl or from a recorded text."""

from __future__ import annotations

import array
import re
import struct
import sys

_SIOCETHTOOL = 0x8946
_GSTRINGS, _GSTATS, _GSSET_INFO = 0x1B, 0x1D, 0x37
_STATS_SET = 1
_NAME_BYTES = 32
_MOST = 1 << 16
"""No adapter has so many; a larger answer is not believed."""

# include/uapi/linux/ethtool.h has the structures. An adapter tells hundreds of figures, most of them per queue: taken
# are those that say how a link, its priorities and the host behind it fare (Linux' mlx5 and bnxt documentation).
KEPT = re.compile(
    r"""(rx|tx)_prio\d_(bytes|packets|pause|pause_duration|pause_transition|discards|buf_discard|cong_discard|marked)
      | (rx|tx)_(pfc_ena_frames_pri|pause_frames?|bytes_pri|packets_pri)\d?
      | (rx|tx)_vport_rdma_(unicast|multicast)_(bytes|packets)
      | (rx|tx)_(discards|crc_errors|symbol_err|pcs_symbol_err|corrected_bits|bytes|packets)_phy
      | (rx|tx)_pause_(ctrl_phy|storm_(warning|error)_events)
      | rx_(out_of_buffer|ecn_mark|fcs_err_frames|symbol_err|pci_signal_integrity)
      | tx_pci_signal_integrity
      | link_down_events(_phy)?
      | outbound_pci_(stalled_(rd|wr)(_events)?|buffer_overflow)""",
    re.VERBOSE,
)
GAUGES = frozenset(("outbound_pci_stalled_rd", "outbound_pci_stalled_wr"))
"""Percentages of the last second; all else counts."""
_LINE = re.compile(r"^\s+(\S[^:]*): (\d+)$", re.MULTILINE)


def parse(text: str) -> dict[str, int]:
    """The kept figures of a text that ``ethtool -S`` printed."""
    return {name: int(value) for name, value in _LINE.findall(text) if KEPT.fullmatch(name)}


def read(netdev: str) -> dict[str, int]:
    """The kept figures of an interface of this host; empty where its driver has none or will not tell. Linux only."""
    if not sys.platform.startswith("linux"):
        return {}
    try:
        return _Interface(netdev).figures()
    except OSError:
        return {}


class _Interface:
    def __init__(self, name: str) -> None:
        self._name = name.encode()[:15]

    def figures(self) -> dict[str, int]:
        count = self._count()
        if not 0 < count <= _MOST:
            return {}
        names = self._ask(struct.pack("=3I", _GSTRINGS, _STATS_SET, count), count * _NAME_BYTES)[12:]
        values = self._ask(struct.pack("=2I", _GSTATS, count), count * 8)[8:]
        found = {}
        for at in range(count):
            name = names[at * _NAME_BYTES : (at + 1) * _NAME_BYTES].split(b"\0")[0].decode("ascii", "replace")
            if KEPT.fullmatch(name):
                found[name] = int.from_bytes(values[at * 8 : at * 8 + 8], sys.byteorder)
        return found

    def _count(self) -> int:
        answer = self._ask(struct.pack("=2IQ", _GSSET_INFO, 0, 1 << _STATS_SET), 4)
        mask, count = struct.unpack_from("=QI", answer, 8)
        return int(count) if mask else 0

    def _ask(self, head: bytes, room: int) -> bytes:
        """One ethtool command: its structure goes in and comes back filled; OSError when the driver refuses."""
        import fcntl
        import socket

        data = array.array("B", head + bytes(room))
        address, _ = data.buffer_info()
        request = struct.pack("16sP", self._name, address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket.fileno(), _SIOCETHTOOL, request + bytes(40 - len(request)))
        return data.tobytes()
