"""LMCache in a virtual environment of its own, on CPUs: for its check of adapters and for its bench.

`KVSCOPE_LMCACHE_VENV` names an existing one; else one is made in `.lmcache-lab` of the checkout (about 1 GB, once).
LMCache's wheel asks for CUDA packages; without them it runs on a stub device, which is enough for an L2.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
REQUIREMENT = "lmcache==0.5.6"
_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
_NEEDS = (
    "aiofile", "aiofiles", "aiohttp", "blake3", "cachetools", "cryptography", "fastapi", "grpcio", "httpx", "msgspec",
    "numba", "numpy<=2.2.6", "nvtx", "opentelemetry-exporter-prometheus", "opentelemetry-sdk", "prometheus_client",
    "psutil", "py-cpuinfo", "pyyaml", "pyzmq", "redis", "requests", "safetensors", "sortedcontainers", "tqdm",
    "transformers>=5.4,<6", "uvicorn", "xxhash",
)  # fmt: skip


def python() -> Path:
    """The interpreter that has LMCache. Raises `RuntimeError` when it cannot be made, saying what to do."""
    given = os.environ.get("KVSCOPE_LMCACHE_VENV")
    venv = Path(given) if given else CHECKOUT / ".lmcache-lab"
    found = venv / "bin" / "python"
    if given and not found.exists():
        raise RuntimeError(f"KVSCOPE_LMCACHE_VENV={given}: no bin/python there; name an environment with {REQUIREMENT}")
    if not given and not (venv / "installed").exists():
        _install(venv)
    return found


def _install(venv: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for words in (["torch", "--index-url", _TORCH_INDEX], ["--no-deps", REQUIREMENT], list(_NEEDS)):
        if subprocess.run([*pip, *words]).returncode:
            raise RuntimeError(f"LMCache's environment could not be made: pip install {' '.join(words[:3])} … failed")
    (venv / "installed").touch()


def adapter(targets: str) -> str:
    """The JSON by which LMCache loads our adapter."""
    return json.dumps(
        {
            "type": "plugin",
            "module_path": "kvstore.integrations.lmcache",
            "class_name": "KvstoreL2Adapter",
            "adapter_params": {"targets": targets},
        }
    )


def environment() -> dict[str, str]:
    """Ours, with this checkout to import from."""
    return {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "ignore"}
