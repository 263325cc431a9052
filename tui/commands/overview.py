"""``kvtop help``: every command in one screen."""

from __future__ import annotations

from tui.commands import COMMANDS

TARGETS = """\
TARGET (several at once):
  host:port, http://host:port/metrics   an engine's or exporter's metrics page
  prometheus+http://host:9090           a Prometheus server (Thanos, Mimir, VictoriaMetrics)
  FILE                                  a recording (OpenMetrics with timestamps)
  file_sd:FILE, http_sd:URL             Prometheus' discovery formats
  rdma, rdma:PATH                       this host's RDMA ports and interfaces (--sysfs PATH: another tree)
  nvml                                  this host's NVIDIA GPUs
None: what is found on this host."""

EXIT_CODES = """\
exit codes:
  diagnose   0 healthy · 1 a finding · 2 usage or rule error · 3 cannot tell · 4 nothing could be collected
  others     0 fine · 2 usage or rule error · 4 nothing could be collected
  any        70 a fault of kvtop itself · 74 the answer could not be written · 130 Ctrl-C"""

DURATIONS = "durations: 30s, 10m, 1h30m    times: 2026-01-31T12:00:00Z, Unix seconds, -5m (from the end of the data)"


def overview() -> str:
    """The whole help page."""
    lines = [f"  kvtop {spec.name:<10} {spec.line}" for spec in COMMANDS.values() if spec.name != "top"]
    return "\n".join(
        [
            "kvtop: what an LLM engine's KV cache does, and what is wrong with it. `kvscope` is the same command.",
            "",
            "  kvtop [TARGET…]  The screens",
            *lines,
            "",
            "`kvtop COMMAND --help` gives a command's options; `kvtop --version` the version.",
            "",
            TARGETS,
            "",
            DURATIONS,
            "",
            EXIT_CODES,
        ]
    )
