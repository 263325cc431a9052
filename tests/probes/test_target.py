"""TARGET forms and the configuration file: what is meant, and one clear line for what cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from probes.attach import attach
from probes.config import load_config
from probes.target import TargetError, hide, parse_target


@pytest.mark.parametrize(
    ("text", "kind", "shown", "instance"),
    [
        ("http://h:8000/metrics", "http", "http://h:8000/metrics", "h:8000"),
        ("http://h:8000", "http", "http://h:8000/metrics", "h:8000"),
        ("https://h/x?y=1", "http", "https://h/x?y=…", "h:443"),
        ("h:8000", "http", "http://h:8000/metrics", "h:8000"),
        ("127.0.0.1:8000/custom", "http", "http://127.0.0.1:8000/custom", "127.0.0.1:8000"),
        ("[::1]:8000", "http", "http://[::1]:8000/metrics", "[::1]:8000"),
        ("http://user:pw@h:1/metrics", "http", "http://h:1/metrics", "h:1"),
        ("http://h:1/m?token=abc&a=b", "http", "http://h:1/m?token=…&a=…", "h:1"),
        ("prometheus+http://h:9090", "prometheus", "prometheus+http://h:9090", "h:9090"),
        ("prometheus+https://u:p@h/base", "prometheus", "prometheus+https://h/base", "h:443"),
        ("http_sd:http://h/list", "http_sd", "http_sd:http://h/list", "h:80"),
        ("HTTP://h:8000/m", "http", "http://h:8000/m", "h:8000"),
        ("Prometheus+HTTPS://h/", "prometheus", "prometheus+https://h/", "h:443"),
        ("http://h:1/a;token=s3cr3t/b;c", "http", "http://h:1/a;token=…/b;c", "h:1"),
    ],
)
def test_forms(text: str, kind: str, shown: str, instance: str) -> None:
    target = parse_target(text)
    assert (target.kind, target.shown, target.instance) == (kind, shown, instance)


def test_a_path_that_is_there_is_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "x.om"
    path.write_text("")
    assert (parse_target(str(path)).kind, parse_target(str(path)).path) == ("recording", path)
    assert parse_target(f"file_sd:{path}").kind == "file_sd"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty target"),
        ("nvml:0", "nvml takes no argument"),
        ("host", "not supported by this version"),
        ("log:/var/log/x", "not supported by this version"),
        ("ftp://h/x", "unknown scheme"),
        ("http://", "not a URL with a host"),
        ("http://h:99999/metrics", "ort"),
        ("h:99999", "out of range"),
        ("localhost:0", "port 0 is out of range"),
        ("http://h:1x/a;token=s3cret", "Port could not be cast"),
        ("http_sd:h:80", "needs a URL"),
        ("file_sd:/no/such", "no such file"),
        ("./no-such.om", "no such file"),
        ("localhost", "as in localhost:8000"),
        ("ftp://user:s3cret@h/x", "unknown scheme"),
        ("user:s3cret@127.0.0.1:1", "as in http://user:password@host:port"),
        ("user:s3cret@h", "…@h: no such file"),
        ("http://user:s3cret@[bad/", "Invalid IPv6 URL"),
        ("http://user:s3cret@h:1x/", "Port could not be cast"),
        ("h:99999/x?a=s3cret", "out of range"),
        ("h:1/x\ny", "target h:1/x\\ny: has a line break"),
        ("http://h:1/\x1b[31m", "\\x1b[31m: has a line break or another control character"),
    ],
)
def test_what_cannot_be_meant_gets_one_line(text: str, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        parse_target(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_pipe_is_no_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TargetError, match="is a pipe; a recording is a file"):
        parse_target(str(tmp_path / "pipe"))
    with pytest.raises(TargetError, match="is a device; a recording is a file"):
        parse_target("/dev/null")


def test_targets_that_look_alike_without_their_queries_are_told_apart() -> None:
    found = attach(["h:1/m?x=1", "h:1/m?x=2", "h:1/m?x=1"])
    assert [status.target for status in found.statuses] == ["http://h:1/m?x=…", "http://h:1/m?x=… #2"]


def instances(targets: list[str], config: Path | None = None) -> list[str]:
    return [status.instance for status in attach(targets, config=config).statuses]


def test_pages_of_one_server_are_different_instances(tmp_path: Path) -> None:
    assert instances(["h:1/ok", "h:1/bad", "h:2"]) == ["h:1/ok", "h:1/bad", "h:2"]
    assert instances(["http://h:1", "h:1/a;k=s3cret/b"]) == ["h:1/metrics", "h:1/a/b"]
    assert instances(["h:1/m?x=1", "h:1/m?x=2"]) == ["h:1/m", "h:1/m #2"]
    named = write(tmp_path, "targets: [{url: 'h:1/a', name: x}, {url: 'h:1/b'}]")
    assert instances([], named) == ["x", "h:1"]
    named.write_text("targets: [{url: 'h:1', name: 'h:2'}, {url: 'h:2'}]")
    assert instances([], named) == ["h:2", "h:2/metrics"]


@pytest.mark.parametrize(
    "targets",
    [
        "[{url: 'h:1', name: x}, {url: 'h:2', name: x}]",
        "[{url: 'h:1', name: x}, {url: 'h:2', name: x, job: other, labels: {role: decode}}]",
    ],
)
def test_two_targets_of_one_name_are_refused(tmp_path: Path, targets: str) -> None:
    with pytest.raises(TargetError, match=r"another target has the name .*: give each its own name"):
        attach([], config=write(tmp_path, f"targets: {targets}\n"))


def test_a_directory_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="is a directory"):
        parse_target(str(tmp_path))


def test_hide_leaves_no_secret() -> None:
    assert hide("http://a:b@h/m?api_key=1&x=2&Password=3") == "http://h/m?api_key=…&x=…&Password=…"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yml"
    path.write_text(text)
    return path


def test_configuration(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "x.om").write_text("# EOF\n")
    config = load_config(
        write(
            tmp_path,
            """
interval: 500ms
slo: ["kv:ttft_seconds < 1"]
targets:
  - url: h:8000
    name: engine-a
    job: vllm
    labels: {cluster: east, role: prefill}
    bearer_token_file: token
    timeout: 2s
  - url: h:8001
    basic_auth: {username: u, password: s3cret}
  - path: x.om
""",
        )
    )
    assert (config.interval_ms, config.slo) == (500, ("kv:ttft_seconds < 1",))
    first, second, third = config.targets
    assert (first.job, first.instance, first.labels) == ("vllm", "engine-a", {"cluster": "east", "role": "prefill"})
    assert (first.access.bearer_file, first.timeout_s) == (tmp_path / "token", 2.0)
    assert (second.access.user, second.access.password) == ("u", "s3cret")
    assert "s3cret" not in repr(config)
    assert third.kind == "recording"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target: []\n", ":1: unknown key 'target'"),
        ("targets:\n  - url: h:1\n    lables: {}\n", ":3: unknown key 'lables'"),
        ("targets:\n  - name: x\n", ":2: a target needs either url or path"),
        ("targets:\n  - url: ftp://x\n", ":2: target ftp://x: unknown scheme"),
        ("targets:\n  - path: no.om\n", "no.om: no such file"),
        ("targets: h:1\n", ":1: targets must be a list"),
        ("targets: [h:1]\n", ":1: a target must be a mapping"),
        ("interval: soon\n", ":1: interval: 'soon' is not a duration"),
        ("interval: 0s\n", ":1: interval: '0s' is not a duration"),
        ("targets:\n  - url: h:1\n    labels: {a-b: c}\n", "'a-b' is not a label name"),
        ("targets:\n  - url: h:1\n    bearer_token_file: nope\n", ":3: bearer_token_file: "),
        ("targets:\n  - url: h:1\n    basic_auth: {password: x}\n", ":3: basic_auth needs a username"),
        ("targets:\n  - url: h:1\n    basic_auth: {username: x}\n", ":3: basic_auth needs either password or"),
        (
            "targets:\n  - url: h:1\n    basic_auth: {username: x, password: y}\n    bearer_token_file: config.yml\n",
            ":4: a target has either basic_auth or bearer_token_file",
        ),
        ("a: [\n", ":2: not YAML"),
        ("targets: " + "[" * 5000, "nested too deeply"),
        ('targets:\n  - url: "http://h:1/\\nx"\n', "has a line break"),
        ('targets:\n  - path: "a\\nb"\n', "a\\nb: no such file"),
        ("interval: 1s\ninterval: 2s\n", ":2: key 'interval' is given twice"),
    ],
)
def test_a_broken_configuration_is_told_by_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        load_config(write(tmp_path, text))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_configuration(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot be read"):
        load_config(tmp_path / "no.yml")
