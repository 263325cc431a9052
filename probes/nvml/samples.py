"""One device's samples of one reading: kept until it is known that the device answered to the end."""

from __future__ import annotations

from collections.abc import Mapping

from probes.nvml.names import PREFIX
from probes.pagetext import PageText


class Samples:
    """Samples by short name (without ``kvscope_nvml_``) and own labels."""

    def __init__(self) -> None:
        self._taken: list[tuple[str, dict[str, str], float]] = []

    def add(self, name: str, value: float | None, **labels: str) -> None:
        """A sample; None is no sample."""
        if value is not None:
            self._taken.append((name, labels, value))

    def value(self, name: str) -> float | None:
        """The first sample of a name; None when there is none."""
        return next((value for taken, _, value in self._taken if taken == name), None)

    def take(self, others: Samples, labels: Mapping[str, str]) -> None:
        """Another's samples, with further labels."""
        self._taken += [(name, {**labels, **own}, value) for name, own, value in others._taken]

    def write(self, page: PageText, labels: Mapping[str, str]) -> None:
        """Put all of them on a page, with the device's labels."""
        for name, own, value in self._taken:
            kind = "counter" if name.endswith("_total") else "gauge"
            page.add(PREFIX + name, kind, {**labels, **own}, value)
