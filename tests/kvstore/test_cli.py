"""`kvstore`: every failure is one line and an exit code."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore import cli, options
from kvstore.errors import BadRequest
from tests.kvstore.process_rig import ROOT


@pytest.fixture
def impatient() -> Iterator[None]:
    """A shard that serves although it should have refused is ended, and the test with it."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.alarm(60)
    yield
    signal.alarm(0)
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def bad_files(tmp_path: Path) -> dict[str, str]:
    """Broken inputs by the name that stands for them."""
    packed = bytearray(gzip.compress(b'{"timestamp": 1}\n' * 400))
    packed[30:40] = bytes(10)
    contents = {
        "bad_cluster": ("cluster.json", b'{"shards": [{"shard": 0}]}'),
        "deep_trace": ("deep.jsonl", b"[" * 100_000 + b"\n"),
        "empty_request": (
            "empty.jsonl",
            b'{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n',
        ),
        "broken_gzip": ("broken.jsonl.gz", bytes(packed)),
    }
    for name, content in contents.values():
        (tmp_path / name).write_bytes(content)
    return {f"{{{word}}}": str(tmp_path / name) for word, (name, _) in contents.items()}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvstore.cli", *words], capture_output=True, text=True, cwd=ROOT, timeout=60
    )


def only_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nonsense"], "no such command"),
        (["tune"], "--gpu NAME is missing"),
        (["simulate", "--x"], "comes with a later release"),
        (["bench", "nonsense"], "no benchmark"),
        (["serve", "--blocks", "0"], "at least one block"),
        (["serve", "--memory", "much"], "no size"),
        (["serve", "--memory", "1"], "not even one block"),
        (["serve", "--memory", "900T"], "MiB are free"),
        (["serve", "--listen", "nonsense"], "no address"),
        (["serve", "--listen", "127.0.0.1:²"], "no address"),
        (["serve", "--listen", "127.0.0.1:٣"], "no address"),
        (["serve", "--metrics-port", "99999"], "ports are"),
        (["cluster", "--metrics-port", "65535", "--shards", "2"], "count up from it"),
        (["cluster", "--metrics-port", "-1"], "ports are"),
        (["serve", "--memory", ""], "no size"),
        (["serve", "--memory", "1e300"], "no size"),
        (["serve", "--session-ttl", "0"], "--session-ttl"),
        (["serve", "--session-ttl=-5m"], "--session-ttl"),
        (["cluster", "--session-ttl", "99999999h"], "--session-ttl"),
        (["serve", "--layout", "/bin/ls"], "no text"),
        (["serve", "--layout", '{"model_id":5}'], "'model_id'"),
        (["serve", "--layout", '{"model_id":null}'], "'model_id'"),
        (["serve", "--layout", '{"model_id":"\\ud800"}'], "'model_id'"),
        (["serve", "--layout", '{"model_id":"x","heads":true}'], "'heads'"),
        (["serve", "--drain-us", "-5"], "--drain-us"),
        (["serve", "--device", ""], "no device ''"),
        (["cluster", "--device", ""], "no device ''"),
        (["nonsense\x1b[31m"], "nonsense\\x1b[31m: no such command"),
        (["cluster", "--shards", "3", "--memory", "900G"], "3 pools"),
        (["cluster", "--cluster-file", "/tmp"], "is a directory"),
        (["cluster", "--cluster-file", "/nope/x"], "no directory /nope"),
        (["replay", "--metrics", "99999"], "ports are"),
        (["replay", "--sessions", "--session-ttl", "0"], "--session-ttl"),
        (["replay", "--connect", "{bad_cluster}"], "no cluster file"),
        (["replay", "{deep_trace}"], "not JSON"),
        (["replay", "{empty_request}"], "at least one"),
        (["replay", "{broken_gzip}"], "cannot be read"),
        (["serve", "--listen", "0.0.0.0:0"], "no loopback address"),
        (["serve", "--listen", "store.example:7600"], "no loopback address"),
        (["serve", "--session-ttl", "soon"], "no time"),
        (["serve", "--layout", "{"], "not a layout"),
        (["serve", "--layout", "/no/such/file"], "No such file"),
        (["serve", "--heads", "-3"], "'heads'"),
        (["serve", "--dtype", "float17"], "dtype"),
        (["serve", "--shard", "2", "--shards", "2"], "numbered from 0"),
        (["serve", "--durability", "log"], "--log-dir"),
        (["serve", "--placement", "round"], "no placement"),
        (["serve", "--run-dir", "/proc/nowhere"], "/proc/nowhere"),
        (["serve", "--listen", "127.0.0.1:0", "--run-dir", "/tmp/" + "x" * 120], "too long"),
        (["serve", "--salt-file", "/no/such/file"], "salt file"),
        (["cluster", "--shards", "0"], "at least one shard"),
        (["cluster", "--placement", "round"], "no placement"),
        (["cluster", "--blocks", "-1"], "at least one block"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said_in_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], impatient: None, bad_files: dict[str, str]
) -> None:
    assert cli.main([bad_files.get(word, word) for word in words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("kvstore ")
    assert says in lines[0]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--help"], ["tune", "--help"], ["tune", "--gpu", "H100", "--model", "llama-3-8b"]])
def test_an_answer_that_cannot_be_written_is_74(words: list[str], unbuffered: str) -> None:
    command = [sys.executable, "-m", "kvstore.cli", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment, timeout=60
        )
    assert done.returncode == cli.EXIT_OUTPUT == 74
    assert done.stderr == "kvstore: standard output cannot be written: no space left on device\n"


def test_a_reader_that_has_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        words = [sys.executable, "-m", "kvstore.cli", "tune", "--help"]
        done = subprocess.run(words, stdout=gone, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_port_in_use_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        common = ["--blocks", "4", "--run-dir", str(tmp_path)]
        assert "in use" in only_line(run("serve", "--listen", address, *common))
        port = address.rsplit(":", 1)[1]
        assert "in use" in only_line(run("serve", "--listen", "127.0.0.1:0", "--metrics-port", port, *common))


def test_usage_without_a_command_and_on_request() -> None:
    for words, code in (([], 2), (["--help"], 0), (["serve", "--help"], 0), (["cluster", "--help"], 0), (["bench"], 2)):
        done = run(*words)
        assert done.returncode == code, done
        assert "usage: kvstore" in done.stdout
    assert run("serve", "--nonsense").returncode == 2


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for missing in ("grpc", "xxhash", "prometheus_client"):

        def fails(*_: object, missing: str = missing) -> int:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

        monkeypatch.setattr(cli, "_run", fails)
        assert cli.main(["serve"]) == 2
        assert "pip install '.[store]' in kvscope's checkout" in capsys.readouterr().err


def test_serve_says_where_it_is_and_ends_when_told(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "kvstore.cli", "serve", "--blocks", "8", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [*argv, "--run-dir", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("shard 0 of 1: 127.0.0.1:")
        assert "/metrics" in line
        assert len(list(tmp_path.iterdir())) == 2
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert errors == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "size"), [("512M", 512 << 20), ("4GiB", 4 << 30), ("1000", 1000), ("1.5k", 1536)])
def test_sizes(text: str, size: int) -> None:
    assert options.size_of(text) == size


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("90s", 90_000), ("30m", 1_800_000), ("2h", 7_200_000), ("3", 3000)]
)
def test_times(text: str, ms: int) -> None:
    assert options.milliseconds_of(text) == ms


def test_addresses() -> None:
    assert options.address_of("127.0.0.1:0") == ("127.0.0.1", 0)
    assert options.address_of("[::1]:7600") == ("::1", 7600)
    for wrong in ("", "host", "host:", ":x", "h:70000"):
        with pytest.raises(BadRequest):
            options.address_of(wrong)
