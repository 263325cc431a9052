"""A topology from NVML (nvidia-ml-py): NVLink states and the nearest common ancestor on PCIe.

Over NVSwitches every link of a GPU ends at a switch, not at its peer; whether two GPUs reach each other by NVLink is
then said by `nvmlDeviceGetP2PStatus`, and over as many links as the one with fewer has. What NVML does not answer is
not known; it is never taken for the slowest way.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from kvstore.errors import BadRequest
from kvstore.topology.graph import UNKNOWN, Gpu, Topology, Way, bus_of

_MAX_LINKS = 36
"""NVML_NVLINK_MAX_LINKS."""
_SWITCH = 2
"""NVML_NVLINK_DEVICE_TYPE_SWITCH."""
_BY_NVLINK = 2
"""NVML_P2P_CAPS_INDEX_NVLINK."""
_P2P_OK = 0
_ANCESTORS = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""`nvmlGpuTopologyLevel_t` in nvidia-smi's words; 0 is the same board, which has no word of its own there."""
_SAME_BOARD = 0


def read() -> Topology:
    """Of this host. Raises `BadRequest` in one line where NVML cannot be asked."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ModuleNotFoundError:
        raise BadRequest(
            "nvidia-ml-py is not installed: pip install '.[nvml]' in kvscope's checkout, or give --file FILE"
        ) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise BadRequest(f"NVML cannot be asked ({_said(error)}): is there a driver? Or give --file FILE") from None
    try:
        return _Host(pynvml).topology()
    except pynvml.NVMLError as error:
        raise BadRequest(f"NVML: {_said(error)}") from None
    finally:
        pynvml.nvmlShutdown()


class _Host:
    """The GPUs of this host, as NVML has them."""

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(at) for at in range(nvml.nvmlDeviceGetCount())]

    def topology(self) -> Topology:
        gpus = tuple(self._gpu(at, handle) for at, handle in enumerate(self._handles))
        links = [self._links(handle) for handle in self._handles]
        ways = {}
        for one in range(len(gpus)):
            for other in range(one + 1, len(gpus)):
                count = self._nvlinks(one, other, gpus, links)
                word = f"NV{count}" if count else self._by_pcie(one, other)
                if word != UNKNOWN:
                    ways[gpus[one].name, gpus[other].name] = Way(word)
        return Topology(gpus, ways, "NVML")

    def _gpu(self, at: int, handle: Any) -> Gpu:
        bus = _bus(self._told("nvmlDeviceGetPciInfo", handle))
        uuid, model = self._told("nvmlDeviceGetUUID", handle), self._told("nvmlDeviceGetName", handle)
        return Gpu(f"gpu{at}", bus, _text(uuid or ""), _text(model or ""))

    def _links(self, handle: Any) -> list[str]:
        """Where each active NVLink of a GPU ends: a bus, or "switch"; "" where it does not say."""
        ends = []
        for link in range(_MAX_LINKS):
            if self._told("nvmlDeviceGetNvLinkState", handle, link) != 1:
                continue
            if self._told("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _SWITCH:
                ends.append("switch")
                continue
            ends.append(_bus(self._told("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)))
        return ends

    def _nvlinks(self, one: int, other: int, gpus: tuple[Gpu, ...], links: list[list[str]]) -> int:
        """Links between two GPUs: those that end at each other, else those to the switch between them."""
        bus = gpus[other].bus
        direct = sum(end == bus for end in links[one]) if bus else 0
        if direct:
            return direct
        by_nvlink = self._told("nvmlDeviceGetP2PStatus", self._handles[one], self._handles[other], _BY_NVLINK)
        if by_nvlink != _P2P_OK:
            return 0
        return min(sum(end in ("switch", "") for end in links[at]) for at in (one, other))

    def _by_pcie(self, one: int, other: int) -> str:
        told = self._told("nvmlDeviceGetTopologyCommonAncestor", self._handles[one], self._handles[other])
        if told == _SAME_BOARD:
            return "PIX"
        return _ANCESTORS.get(-1 if told is None else int(told), UNKNOWN)

    def _told(self, function: str, *arguments: Any) -> Any:
        """What NVML answers; None where it does not, or with a text that is no UTF-8."""
        try:
            return getattr(self._nvml, function)(*arguments)
        except (self._nvml.NVMLError, UnicodeDecodeError):
            return None


def _bus(pci: Any) -> str:
    """Of what NVML says about PCI; "" where it says nothing that can be read: nvidia-ml-py decodes only now."""
    try:
        return "" if pci is None else bus_of(_text(pci.busId))
    except UnicodeDecodeError:
        return ""


def _said(error: Exception) -> str:
    """An error of NVML in the driver's words, where these are a text."""
    try:
        return str(error)
    except UnicodeDecodeError:
        return "an error without a text"


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
