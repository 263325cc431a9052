"""The commands on real parts: the packaged recording, and endpoints on loopback."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endpoints import Endpoint
from tests.live.living_page import LivingPage
from tests.tui.commands_rig import CULPRIT, DEMO, ROOT, Captured, run, run_json
from tui.doctor.environment import path_commands

# --- once


def test_once_reads_every_engine(capsys: Captured) -> None:
    code, out, _ = run(capsys, "once", str(DEMO))
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("pod-")}
    assert code == 0
    assert set(rows) == {"pod-1:8000", "pod-2:8000", "pod-3:8000"}
    assert "Sources" in out


@pytest.fixture
def steady(tmp_path: Path) -> str:
    """An engine that reads 1000 tokens a second, from the first sample on: a counter long under way."""
    path = tmp_path / "steady.om"
    labels = 'engine="0",instance="pod-1:8000",job="vllm"'
    lines = ["# TYPE vllm:num_requests_running gauge", "# TYPE vllm:prompt_tokens counter"]
    for second in range(0, 301, 5):
        lines.append(f"vllm:num_requests_running{{{labels}}} 3 {1_700_000_000 + second}")
        lines.append(f"vllm:prompt_tokens_total{{{labels}}} {9_000_000 + 1000 * second} {1_700_000_000 + second}")
    path.write_text("\n".join([*lines, "# EOF"]) + "\n")
    return str(path)


@pytest.mark.parametrize("second", [10, 15, 30, 299])
def test_a_rate_near_the_start_of_the_data_is_a_rate_over_the_data(capsys: Captured, steady: str, second: int) -> None:
    at = str(1_700_000_000 + second)
    _, document = run_json(capsys, "once", steady, "--at", at)
    (rate,) = (e["values"]["kv:prompt_tokens:rate"] for e in document["entities"] if e["labels"].get("engine"))
    assert (rate["value"], rate["state"]) == (pytest.approx(1000, rel=0.02), "fresh")
    expr = "rate(kv:prompt_tokens_total[$window])"
    _, answer = run_json(capsys, "query", expr, steady, "--time", at)
    assert float(answer["result"][0]["value"][1]) == pytest.approx(1000, rel=0.02)


def test_a_range_from_the_start_of_the_data_has_no_rate_that_is_too_low(capsys: Captured, steady: str) -> None:
    words = ("query", "rate(kv:prompt_tokens_total[$window])", steady, "--start", "-5m", "--step", "5s")
    _, answer = run_json(capsys, *words)
    (row,) = answer["result"]
    times = [time for time, _ in row["values"]]
    assert times == list(range(1_700_000_005, 1_700_000_301, 5)), "one row, every step once"
    assert [float(value) for _, value in row["values"]] == pytest.approx([1000] * 60, rel=0.02)


def test_an_answer_without_series_is_said_on_stderr(capsys: Captured) -> None:
    assert run(capsys, "query", "no_such_series", str(DEMO)) == (
        0,
        "",
        "kvtop: no series: nothing matches, or nothing has a value at that time\n",
    )
    assert run(capsys, "query", "vector(1)", str(DEMO))[2] == ""


@pytest.mark.parametrize("words", [["once"], ["query", "up"]])
def test_for_says_that_a_recording_is_not_watched(capsys: Captured, words: list[str]) -> None:
    assert "--for has no effect" in run(capsys, *words, str(DEMO), "--for", "10s")[2]
    assert run(capsys, *words, str(DEMO))[2] == ""


def test_a_recording_is_not_written_to_a_pipe(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "record", "127.0.0.1:1", "-o", "-", "--for", "1s")
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert "name a file" in err


def test_a_recording_that_the_disk_does_not_take_is_exit_74(tmp_path: Path) -> None:
    file = tmp_path / "x.om"
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); from tui.cli import main"
    with Endpoint(page=b"".join(b"a_%d 1\n" % n for n in range(200))) as endpoint:
        words = ["record", endpoint.target, "-o", str(file), "--interval", "50ms", "--for", "20s"]
        done = subprocess.run(
            [sys.executable, "-c", f"{limited}; sys.exit(main({words!r}))"], cwd=ROOT, capture_output=True, text=True
        )
    assert (done.returncode, done.stdout) == (74, "")
    assert done.stderr == f"kvtop: {file}: cannot be written: file too large; what came before is there\n"
    assert file.stat().st_size > 0


def test_the_demo_says_what_it_is(capsys: Captured) -> None:
    assert "A store under a real trace, or a recorded incident" in run(capsys, "help")[1]


def test_once_waits_for_the_targets_of_a_list(capsys: Captured, tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        (tmp_path / "list.json").write_text(json.dumps([{"targets": [endpoint.target]}]))
        code, out, err = run(capsys, "once", f"file_sd:{tmp_path / 'list.json'}")
        assert (code, err) == (0, "")
        assert "fresh" in out.splitlines()[-1]
        code, out, err = run(capsys, "query", "vllm:num_requests_running", f"file_sd:{tmp_path / 'list.json'}")
        assert (code, err, "3" in out) == (0, "", True)


def test_once_json_is_the_reading(capsys: Captured) -> None:
    code, document = run_json(capsys, "once", str(DEMO))
    assert (code, document["schema"]) == (0, "kvscope.reading/1")
    culprit = next(e for e in document["entities"] if e["labels"].get("instance") == CULPRIT)
    hits = culprit["values"]["kv:prefix_hit_ratio"]
    assert hits["value"] == pytest.approx(0.0074, abs=0.001)
    assert (hits["unit"], hits["state"]) == ("ratio", "fresh")
    offload = culprit["values"]["kv:offload_load_bytes:rate"]
    assert (offload["value"], offload["state"]) == (None, "unsupported")


def test_once_at_an_earlier_moment_of_a_recording(capsys: Captured) -> None:
    _, document = run_json(capsys, "once", str(DEMO), "--at", "-8m")
    culprit = next(e for e in document["entities"] if e["labels"].get("instance") == CULPRIT)
    assert culprit["values"]["kv:prefix_hit_ratio"]["value"] > 0.8


def test_one_scrape_has_counters_and_no_rate(capsys: Captured) -> None:
    with Endpoint() as endpoint, LivingPage(endpoint):
        code, document = run_json(capsys, "once", endpoint.target)
    values = document["entities"][0]["values"]
    assert code == 0
    assert values["kv:generation_tokens:rate"] == {
        "value": None,
        "unit": "tokens_per_second",
        "state": "not-yet-seen",
        "age_s": None,
    }
    assert values["kv:ttft_seconds:p99"]["state"] == "not-yet-seen"
    assert values["kv:generation_tokens_total"]["value"] > 0
    assert len(endpoint.requests) == 1, "once scrapes once"


# --- query


def test_query_agrees_with_the_page(capsys: Captured) -> None:
    with Endpoint() as endpoint:
        code, data = run_json(capsys, "query", "kv:requests_running", endpoint.target)
    assert (code, data["resultType"]) == (0, "vector")
    assert [row["value"][1] for row in data["result"]] == ["3"]
    assert data["result"][0]["metric"]["system"] == "vllm"


def test_query_over_a_range(capsys: Captured) -> None:
    words = ("query", f'kv:pool_usage_ratio{{instance="{CULPRIT}"}}', str(DEMO), "--start", "-2m", "--step", "30s")
    code, data = run_json(capsys, *words)
    times = [t for t, _ in data["result"][0]["values"]]
    assert (code, data["resultType"], len(times)) == (0, "matrix", 5)
    assert times[-1] - times[0] == 120


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rate(up[5m]"], "column 5: "),
        (["kv:pool_usage_rato"], "did you mean kv:pool_usage_ratio"),
        (["up", "--time", "-1m", "--start", "-2m"], "one or the other"),
        (["up", "--step", "1s"], "needs --start"),
        (["up", "--start", "-10m", "--step", "1ms"], "longer --step"),
    ],
)
def test_a_query_that_cannot_be_meant(words: list[str], says: str, capsys: Captured) -> None:
    code, out, err = run(capsys, "query", words[0], str(DEMO), *words[1:])
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("kvtop: ")


def test_the_caret_stands_under_the_fault_in_the_words_that_were_typed(capsys: Captured) -> None:
    _, _, err = run(capsys, "query", "sum(rate(up[$window])) by (", str(DEMO))
    _, shown, caret = err.splitlines()
    assert shown.strip() == "sum(rate(up[$window])) by ("
    assert shown[caret.index("^")] == "("


@pytest.mark.parametrize(("expr", "value"), [("-Inf", "-Inf"), ("-1 + 3", "2"), ("-(4)", "-4")])
def test_an_expression_may_start_with_a_minus(expr: str, value: str, capsys: Captured) -> None:
    code, data = run_json(capsys, "query", expr, str(DEMO))
    assert (code, data["result"][1]) == (0, value)


def test_a_negated_series_is_no_option(capsys: Captured) -> None:
    plus = run_json(capsys, "query", "sum(kv:requests_running)", str(DEMO), "--at", "-0.5s")[1]["result"][0]["value"][1]
    for expr in ("-sum(kv:requests_running)", "- sum(kv:requests_running)", "-kv:requests_running"):
        code, data = run_json(capsys, "query", expr, str(DEMO), "--at", "-0.5s")
        assert code == 0
        assert sum(float(row["value"][1]) for row in data["result"]) == -float(plus)


def test_one_scrape_has_no_rate_and_says_so(capsys: Captured) -> None:
    words = ("query", "rate(kv:generation_tokens_total[1m])")
    with Endpoint() as endpoint, LivingPage(endpoint):
        _, out, said = run(capsys, *words, endpoint.target)
        _, document, err = run(capsys, *words, endpoint.target, "--json")
        _, _, plain = run(capsys, "query", "no_such_series", endpoint.target)
    assert (out, "--for 30s" in said) == ("", True)
    assert json.loads(document)["result"] == []
    assert "--for 30s" in err
    assert "--for" not in plain


# --- times


@pytest.mark.parametrize(
    ("command", "option"), [("once", "--at"), ("diagnose", "--at"), ("query", "--time"), ("query", "--at")]
)
@pytest.mark.parametrize(
    ("when", "says"),
    [
        ("2020-01-01T00:00:00Z", "lies outside: the data spans 2026-03-17T14:00:00Z to 2026-03-17T14:10:00Z"),
        ("-1h", "lies outside"),
        ("2030-01-01T00:00:00Z", "lies outside"),
        ("-99999999999999999y", "at most 200 years"),
        ("99999999999999999999", "no time"),
    ],
)
def test_a_time_outside_of_the_data(command: str, option: str, when: str, says: str, capsys: Captured) -> None:
    words = ["query", "up"] if command == "query" else [command]
    code, out, err = run(capsys, *words, str(DEMO), option, when)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_range_outside_of_the_data(capsys: Captured) -> None:
    code, out, err = run(capsys, "query", "up", str(DEMO), "--start", "-3h", "--end", "-2h")
    assert (code, out) == (2, "")
    assert "lies outside: the data spans" in err


# --- diagnose


def test_diagnose_names_the_cause_and_its_member(capsys: Captured) -> None:
    code, document = run_json(capsys, "diagnose", str(DEMO))
    first = document["findings"][0]
    assert (code, document["schema"], document["verdict"]) == (1, "kvscope.diagnosis/1", "finding")
    assert (first["cause"], first["member"]) == ("prefix-key-unstable", {"instance": CULPRIT})
    assert set(first) >= {"verdict", "evidence", "refuted", "explains", "cost", "remedies", "confirm"}
    assert set(first["evidence"][0]) >= {"expr", "value", "op", "threshold", "basis", "window_s"}
    assert set(document) >= {"window", "unknown", "unexplained", "sources"}
    for style in ([], ["--markdown"]):
        _, out, _ = run(capsys, "diagnose", str(DEMO), *style)
        assert "prefix-key-unstable" in out
        assert CULPRIT in out


def test_before_the_incident_all_is_well(capsys: Captured) -> None:
    code, document = run_json(capsys, "diagnose", str(DEMO), "--at", "2026-03-17T14:03:30Z")
    assert (code, document["verdict"], document["findings"]) == (0, "healthy", [])
    assert document["window"]["end"] == 1773756210


def test_the_users_objective_decides(capsys: Captured) -> None:
    calm = ["diagnose", str(DEMO), "--at", "2026-03-17T14:03:30Z", "--slo"]
    assert run(capsys, *calm, "kv:requests_waiting < 1000")[0] == 0
    code, out, _ = run(capsys, *calm, "kv:requests_running < 1")
    assert code == 3, "a broken objective that nothing explains"
    assert "requests_running" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--at", "2020-01-01T00:00:00Z"], "lies outside"),
        (["--against", "-24h"], "not in the data"),
        (["--slo", "fast"], "EXPR OP NUMBER"),
        (["--slo", "rate(up[1m] < 2"], "never closed"),
        (["--playbooks", "/no/such/folder"], "no folder"),
    ],
)
def test_a_diagnosis_that_cannot_be_meant(words: list[str], says: str, capsys: Captured) -> None:
    code, out, err = run(capsys, "diagnose", str(DEMO), *words)
    assert (code, out) == (2, "")
    assert says in err


def test_a_broken_playbook_is_one_line_with_its_place(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "mine.md").write_text("---\nid: mine\n  tests: [\n---\n# Mine\n")
    code, _, err = run(capsys, "diagnose", str(DEMO), "--playbooks", str(tmp_path))
    assert code == 2
    assert f"{tmp_path}/mine.md:" in err
    assert len(err.splitlines()) == 1


def test_a_live_engine_is_watched_and_healthy(capsys: Captured) -> None:
    with Endpoint() as endpoint, LivingPage(endpoint):
        code, document = run_json(capsys, "diagnose", endpoint.target, "--for", "2s", "--interval", "100ms")
    assert (code, document["verdict"]) == (0, "healthy")
    assert document["sources"][0]["state"] == "fresh"


# --- doctor, rules, playbook, demo


def test_doctor_says_how_to_turn_signals_on(capsys: Captured) -> None:
    with Endpoint() as endpoint, LivingPage(endpoint):
        code, out, _ = run(capsys, "doctor", endpoint.target)
        assert code == 0
        assert "--kv-cache-metrics" in out
        _, document = run_json(capsys, "doctor", endpoint.target)
    assert document["schema"] == "kvscope.doctor/1"
    missing = {name for entry in document["instances"][0]["missing"] for name in entry["signals"]}
    assert "kv:block_lifetime_seconds" in missing
    assert "kv:pool_usage_ratio" not in missing
    assert document["targets"][0]["state"] == "fresh"


def test_doctor_knows_a_shard_of_our_own_store(tmp_path: Path, capsys: Captured) -> None:
    page = tmp_path / "shard.om"
    where = 'instance="s:1",job="kvstore",shard="0"'
    page.write_text(
        f"# TYPE kv_store_info gauge\nkv_store_info{{{where}}} 1 1000\n"
        f"# TYPE kv_pool_capacity_blocks gauge\nkv_pool_capacity_blocks{{{where}}} 64 1000\n# EOF\n"
    )
    assert "s:1 (kvstore): " in run(capsys, "doctor", str(page))[1]


def test_the_lab_lists_its_scenarios_without_a_store() -> None:
    """In a process of its own: the extra's modules cannot be imported there."""
    words = (
        "import sys\nfor name in ('grpc', 'xxhash', 'prometheus_client'): sys.modules[name] = None\n"
        "from tui.cli import main\nsys.exit(main(['lab', 'list', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) > 10
    assert all("needs grpc, xxhash, prometheus_client" in row["skipped"] for row in rows)


def test_doctor_knows_a_foreign_kvtop(tmp_path: Path) -> None:
    foreign, ours = tmp_path / "foreign" / "bin", tmp_path / "ours" / "bin"
    for folder, text in ((foreign, "#!/bin/sh\nexit 0\n"), (ours, "#!python\nfrom tui.cli import main\n")):
        folder.mkdir(parents=True)
        (folder / "kvtop").write_text(text)
        (folder / "kvtop").chmod(0o755)
    info = tmp_path / "foreign" / "lib" / "python3.11" / "site-packages" / "kvcached-0.1.6.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("../../../bin/kvtop,sha256=x,1\n")
    first = next(iter(path_commands(f"{foreign}:{ours}")))
    assert first.state == "wrong"
    assert "kvcached" in first.says
    assert "kvscope" in first.advice
    assert next(iter(path_commands(f"{ours}:{foreign}"))).state == "ok"


def test_rules_are_for_prometheus(tmp_path: Path, capsys: Captured) -> None:
    code, out, _ = run(capsys, "rules")
    assert code == 0
    assert "record: kv:pool_usage_ratio" in out
    assert "alert: KvscopeKvCapacityExhausted" in out
    assert "alert:" not in run(capsys, "rules", "--recording")[1]
    assert "record:" not in run(capsys, "rules", "--alerts")[1]
    if shutil.which("promtool"):
        file = tmp_path / "rules.yml"
        file.write_text(out)
        done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_playbooks_are_listed_shown_and_linted(capsys: Captured) -> None:
    _, out, _ = run(capsys, "playbook", "list")
    catalog = sorted(path.stem for path in (ROOT / "playbooks" / "catalog").glob("*.md"))
    assert [line.split()[0] for line in out.splitlines()[1:]] == catalog
    code, out, _ = run(capsys, "playbook", "show", "stuck-transfer")
    assert code == 0
    assert "## Mitigation" in out
    code, _, err = run(capsys, "playbook", "show", "stuck-transfers")
    assert code == 2
    assert "did you mean stuck-transfer" in err
    assert run(capsys, "playbook", "lint")[0] == 0


def test_lint_refuses_with_file_line_and_what_to_do(tmp_path: Path, capsys: Captured) -> None:
    bad = tmp_path / "pool-leak.md"
    text = (ROOT / "playbooks" / "catalog" / "pool-leak.md").read_text()
    bad.write_text(text.replace("basis: ", "basis: rumour # ", 1))
    code, _, err = run(capsys, "playbook", "lint", str(bad))
    assert code == 2
    assert err.startswith(f"{bad}:")
    assert "rumour" in err


def test_the_demo_without_a_terminal_tells_story_reading_and_diagnosis(capsys: Captured) -> None:
    code, out, _ = run(capsys, "demo", "--recorded", "--text")
    assert code == 0
    for words in ("a clock in the system prompt", "ENGINE", "prefix-key-unstable", CULPRIT):
        assert words in out
    assert "**" not in out


# --- recordings beside live targets


def test_an_old_recording_beside_a_live_target_says_that_it_is_not_shown(capsys: Captured, steady: str) -> None:
    with Endpoint() as endpoint, LivingPage(endpoint):
        code, document = run_json(capsys, "once", steady, endpoint.target, "--for", "3s", "--interval", "250ms")
        _, diagnosis = run_json(capsys, "diagnose", steady, endpoint.target, "--for", "3s", "--interval", "250ms")
        _, earlier = run_json(capsys, "once", steady, endpoint.target, "--at", "1700000299")
    assert code == 0
    old, live = document["sources"]
    assert (old["state"], live["state"]) == ("stale", "fresh")
    assert old["error"].startswith("ends at 2023-11-14T22:18:20Z, long before the moment shown")
    (engine,) = (e for e in document["entities"] if e["labels"].get("engine"))
    rate = engine["values"]["kv:generation_tokens:rate"]
    assert rate["value"] == pytest.approx(200, rel=0.35), "over the three seconds, and not over the years between"
    assert diagnosis["window"]["end"] - diagnosis["window"]["start"] < 60
    assert [source["state"] for source in earlier["sources"]] == ["fresh", "fresh"]
    assert [e["labels"]["instance"] for e in earlier["entities"] if e["labels"].get("engine")] == ["pod-1:8000"]
