"""From the words of a command line to something that can be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probes.attach import attach, discover
from probes.labels import Labels
from probes.promql.value import Vector
from probes.target import TargetError
from tests.endpoints import Endpoint


def recording(tmp_path: Path, name: str = "x.om", step: int = 5) -> str:
    path = tmp_path / name
    path.write_text("".join(f'up{{job="j",instance="i"}} 1 {t}\n' for t in range(0, 50, step)) + "# EOF\n")
    return str(path)


def value(found: object) -> dict[Labels, float]:
    assert isinstance(found, Vector)
    rows = zip(found.labels, found.values[:, 0], found.present[:, 0], strict=True)
    return {labels: float(number) for labels, number, here in rows if here}


def test_a_recording_is_there_at_once_with_its_own_interval(tmp_path: Path) -> None:
    attachment = attach([recording(tmp_path)])
    assert (attachment.live, attachment.interval_ms, attachment.span()) == (False, 5000, (0, 45_000))
    assert [status.state for status in attachment.statuses] == ["fresh"]
    assert list(value(attachment.view.instant("up", 45_000)).values()) == [1.0]


async def test_an_endpoint_is_asked_by_cycles(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        attachment = attach([endpoint.target], interval_ms=700)
        assert (attachment.live, attachment.interval_ms, attachment.span()) == (True, 700, None)
        cycle = await attachment.cycle(10_000)
        assert [status.state for status in cycle.statuses] == ["fresh"]
        assert attachment.span() == (10_000, 10_000)
        assert list(value(attachment.view.instant("kv:pool_usage_ratio", 10_000)).values()) == [0.25]
        await attachment.close()


async def test_recordings_and_endpoints_mix(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        attachment = attach([recording(tmp_path), endpoint.target, endpoint.target])
        cycle = await attachment.cycle(50_000)
        assert [status.kind for status in cycle.statuses] == ["recording", "http"]
        assert len(value(attachment.view.instant("up", 50_000))) == 2
        await attachment.close()


def test_a_recording_goes_on_where_another_ended(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{n}.om" for n in (1, 2, 3))
    for path, start in ((first, 0), (second, 50), (third, 60)):
        path.write_text(
            "".join(f'm{{job="j",instance="i"}} {t} {t}\n' for t in range(start, start + 50, 5)) + "# EOF\n"
        )
    attachment = attach([str(first), str(second)])
    assert attachment.span() == (0, 95_000)
    at = (20_000, 90_000)
    assert [list(value(attachment.view.instant("m", t)).values()) for t in at] == [[20.0], [90.0]]
    overlapping = attach([str(first), str(second), str(third)])
    assert [status.state for status in overlapping.statuses] == ["fresh"] * 3
    assert list(value(overlapping.view.instant("m", 90_000)).values()) == [90.0]


async def test_what_is_there_now_is_shown_before_what_was_recorded(tmp_path: Path) -> None:
    with Endpoint(b"m 7\n") as endpoint:
        path = tmp_path / "x.om"
        path.write_text(f'm{{job="kvscope",instance="{endpoint.target}"}} 1 9\n# EOF\n')
        attachment = attach([str(path), endpoint.target])
        await attachment.cycle(10_000)
        assert list(value(attachment.view.instant("m", 10_000)).values()) == [7.0]
        assert [status.kind for status in attachment.statuses] == ["recording", "http"]
        await attachment.close()


async def test_configuration_sets_labels_and_interval(tmp_path: Path) -> None:
    with Endpoint() as endpoint:
        config = tmp_path / "c.yml"
        config.write_text(
            "interval: 2s\nslo: [a < 1]\n"
            f"targets: [{{url: '{endpoint.url}', name: e1, job: vllm, labels: {{role: p}}}}]\n"
        )
        attachment = attach([], config=config)
        assert (attachment.interval_ms, attachment.config.slo) == (2000, ("a < 1",))
        await attachment.cycle(1000)
        assert set(value(attachment.view.instant("up", 1000))) == {
            Labels.of({"job": "vllm", "instance": "e1", "role": "p"}, name="up")
        }
        await attachment.close()


def test_without_a_target_it_says_what_one_is() -> None:
    with pytest.raises(TargetError, match="no target"):
        attach([])


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_targets_listed_in_a_file_come_and_go(tmp_path: Path, form: str) -> None:
    with Endpoint() as a, Endpoint() as b:
        path = tmp_path / f"list.{form}"

        def write(*targets: str) -> None:
            if form == "json":
                path.write_text(f'[{{"targets": {list(targets)!r}, "labels": {{"zone": "z"}}}}]'.replace("'", '"'))
            else:
                path.write_text("- targets: [" + ", ".join(f"'{t}'" for t in targets) + "]\n  labels: {zone: z}\n")

        write(a.target, b.target)
        attachment = attach([f"file_sd:{path}"])
        assert [status.state for status in (await attachment.cycle(1000)).statuses] == ["fresh", "fresh"]
        assert {labels.get("zone") for labels in value(attachment.view.instant("up", 1000))} == {"z"}
        write(b.target, "127.0.0.1:1")
        cycle = await attachment.cycle(2000)
        assert [(status.instance, status.state) for status in cycle.statuses] == [
            (b.target, "fresh"),
            ("127.0.0.1:1", "refused"),
        ]
        up = {labels.get("instance"): v for labels, v in value(attachment.view.instant("up", 2001)).items()}
        assert up == {b.target: 1.0, "127.0.0.1:1": 0.0}, "the target that is listed no more is stale"
        path.write_text("{broken")
        cycle = await attachment.cycle(3000)
        assert [status.state for status in cycle.statuses] == ["not-exposition", "fresh", "refused"]
        await attachment.close()


async def test_listed_pages_of_one_server_are_different_instances(tmp_path: Path) -> None:
    with Endpoint() as engine:
        path = tmp_path / "list.json"
        groups = [{"targets": [engine.target], "labels": {"__metrics_path__": p}} for p in ("/a", "/b")]
        path.write_text(json.dumps(groups))
        attachment = attach([engine.target, f"file_sd:{path}"])
        cycle = await attachment.cycle(1000)
        host = engine.target
        assert [status.instance for status in cycle.statuses] == [host, f"{host}/a", f"{host}/b"]
        path.write_text(json.dumps([*groups, {"targets": ["h:1", "h:2"], "labels": {"instance": "x"}}]))
        statuses = (await attachment.cycle(2000)).statuses
        assert "another target has the name (label instance) x" in (statuses[1].error or "")
        assert [status.state for status in statuses] == ["fresh", "not-exposition", "fresh", "fresh"]
        await attachment.close()


@pytest.mark.parametrize("target", ["5", "true", "[h]"])
async def test_a_listed_target_that_is_no_text_is_refused(tmp_path: Path, target: str) -> None:
    path = tmp_path / "list.yml"
    path.write_text(f"- targets: [{target}]\n")
    (status,) = (await attach([f"file_sd:{path}"]).cycle(1000)).statuses
    assert (status.state, "is not text in the form host:port" in (status.error or "")) == ("not-exposition", True)


async def test_targets_listed_by_a_server(tmp_path: Path) -> None:
    with Endpoint() as engine, Endpoint() as registry:
        labels = {"__metrics_path__": "/m", "__meta_x": "y", "job": "v"}
        registry.serve(json.dumps([{"targets": [engine.target], "labels": labels}]), "application/json")
        attachment = attach([f"http_sd:http://{registry.target}/list"])
        (status,) = (await attachment.cycle(1000)).statuses
        assert (status.state, status.target, status.job) == ("fresh", f"http://{engine.target}/m", "v")
        assert b"GET /m " in engine.requests[0]
        await attachment.cycle(2000)
        assert len(registry.requests) == 1, "not due yet"
        registry.behave("500")
        states = [one.state for one in (await attachment.cycle(60_000)).statuses]
        assert states == ["http-error", "fresh"], "the targets stay"
        await attachment.close()


async def test_discover_names_what_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint() as endpoint:
        monkeypatch.setattr("probes.attach.WELL_KNOWN", ((endpoint.port, "an engine"), (1, "nothing")))
        assert await discover() == [(endpoint.target, "an engine")]
