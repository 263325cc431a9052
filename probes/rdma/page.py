"""What a sysfs tree says, as a page of metrics: the same text that an exporter would serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from probes.pagetext import PageText
from probes.rdma import ethtool
from probes.rdma.names import HELP, SETTINGS, counted, is_gauge, rate_bytes, state_id
from probes.rdma.odometer import Odometer
from probes.rdma.tree import SysfsTree

_NO_GID = {"", "0000:0000:0000:0000:0000:0000:0000:0000"}
_GIDS = 16
"""GID entries that are looked at: each read is a call into the driver, and addresses come first in the table."""
_CARRIER_COUNTS = ("carrier_changes", "carrier_up_count", "carrier_down_count")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a tree: the page, its ports (device/port), and what may not be read."""

    page: bytes
    ports: tuple[str, ...]
    forbidden: tuple[Path, ...]
    has_devices: bool


class Reader:
    """Reads one tree again and again; remembers what it takes to carry counters past their end."""

    def __init__(self, tree: SysfsTree) -> None:
        self.tree = tree
        self._odometers: dict[tuple[str, str], Odometer] = {}

    def read(self) -> Reading:
        tree, page = self.tree, PageText(HELP)
        tree.forbidden.clear()
        found: dict[tuple[str, str], str | None] = {}
        for device, port, folder in tree.ports():
            found[device, port] = self._port(page, device, port, folder)
        self._odometers = {key: kept for key, kept in self._odometers.items() if key in found}
        owners = {netdev: key for key, netdev in found.items() if netdev}
        for netdev in sorted({*owners, *tree.netdevs()}):
            _netdev(page, tree, netdev, owners.get(netdev))
        has_devices = bool(tree.names(tree.devices_folder))
        return Reading(page.text(), tuple("/".join(key) for key in found), tuple(tree.forbidden), has_devices)

    def _port(self, page: PageText, device: str, port: str, folder: Path) -> str | None:
        """The port's samples; the answer is the network interface behind it."""
        tree = self.tree
        labels = {"device": device, "port": port}
        page.add("rdma_port_state", "gauge", labels, state_id(tree.text(folder / "state")))
        page.add("rdma_port_physical_state", "gauge", labels, state_id(tree.text(folder / "phys_state")))
        page.add("rdma_port_rate_bytes_per_second", "gauge", labels, rate_bytes(tree.text(folder / "rate")))
        netdev, gid_type = self._gids(folder)
        info = {"link_layer": tree.text(folder / "link_layer"), "netdev": netdev, "gid_type": gid_type}
        info |= {"driver": self._driver(device), "firmware": tree.text(tree.devices_folder / device / "fw_ver")}
        page.add("rdma_port_info", "gauge", labels | {k: v for k, v in info.items() if v}, 1.0)
        for name, value in self._counters(folder / "counters").items():
            if counted(name, value):
                page.add(f"rdma_port_{name.removeprefix('port_')}_total", "counter", labels, value)
        counts = self._counters(folder / "hw_counters")
        carried = self._odometers.setdefault((device, port), Odometer()).carried(counts)
        for name, value in carried.items():
            if is_gauge(name):
                page.add(f"rdma_hw_{name}", "gauge", labels, value)
            else:
                page.add(f"rdma_hw_{name}_total", "counter", labels, value)
        return netdev

    def _counters(self, folder: Path) -> dict[str, int]:
        tree = self.tree
        read = {name: tree.number(folder / name) for name in tree.names(folder) if name not in SETTINGS}
        return {name: value for name, value in read.items() if value is not None}

    def _gids(self, folder: Path) -> tuple[str | None, str | None]:
        """(network interface, GID type) that RoCE would use: the last type among an interface's set GIDs, v2 first."""
        tree, attributes = self.tree, folder / "gid_attrs"
        netdev, kinds = None, []
        indices = [name for name in tree.names(folder / "gids") or tree.names(attributes / "types") if name.isdigit()]
        for index in sorted(indices, key=int)[:_GIDS]:
            if (folder / "gids").is_dir() and tree.text(folder / "gids" / index) in _NO_GID:
                continue
            netdev = netdev or tree.text(attributes / "ndevs" / index)
            if kind := tree.text(attributes / "types" / index):
                kinds.append(kind)
        return netdev, next((kind for kind in kinds if "v2" in kind), kinds[-1] if kinds else None)

    def _driver(self, device: str) -> str | None:
        """The driver behind a device: its bus says so, or for a software device its name."""
        link = self.tree.devices_folder / device / "device" / "driver"
        try:
            return link.resolve(strict=True).name
        except OSError:
            stem = device.rstrip("0123456789").rstrip("_")
            return stem or None


def _netdev(page: PageText, tree: SysfsTree, netdev: str, owner: tuple[str, str] | None) -> None:
    folder = tree.netdev_folder(netdev)
    labels = {"device": netdev}
    if owner:
        labels |= {"rdma_device": owner[0], "rdma_port": owner[1]}
    for name in tree.names(folder / "statistics"):
        page.add(f"netdev_{name}_total", "counter", labels, tree.number(folder / "statistics" / name))
    for name in _CARRIER_COUNTS:
        page.add(f"netdev_{name}_total", "counter", labels, tree.number(folder / name))
    page.add("netdev_carrier", "gauge", labels, tree.number(folder / "carrier"))
    speed = tree.number(folder / "speed")  # in Mb/s; -1 is unknown
    page.add("netdev_speed_bytes_per_second", "gauge", labels, speed * 125_000 if speed and speed > 0 else None)
    page.add("netdev_mtu_bytes", "gauge", labels, tree.number(folder / "mtu"))
    recorded = tree.ethtool_text(netdev)
    figures = ethtool.read(netdev) if tree.live else ethtool.parse(recorded or "")
    for name, value in figures.items():
        if name in ethtool.GAUGES:
            page.add(f"ethtool_{name}", "gauge", labels, value)
        else:
            page.add(f"ethtool_{name}_total", "counter", labels, value)


def folded(paths: Iterable[Path], root: Path) -> str:
    """A few paths in words, relative to the tree's root."""
    distinct = list(dict.fromkeys(paths))
    shown = [str(path.relative_to(root)) if path.is_relative_to(root) else str(path) for path in distinct]
    more = f" and {len(shown) - 2} more" if len(shown) > 2 else ""
    return ", ".join(shown[:2]) + more
