"""Which GPU reaches which: from NVML's library (all but that is real), from a file, and as measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.errors import BadRequest
from kvstore.topology.cli import lines_of
from kvstore.topology.file import MAX_BYTES, parsed, read
from kvstore.topology.graph import Gpu, Topology, Way, bus_of
from tests import nvml_rig
from tests.kvstore.device_rig import Stub, compiled, stubbed
from tests.kvstore.process_rig import ROOT

SOURCE = Path(__file__).with_name("nvml_topology_stub.c")

HGX = "\n".join(
    [
        "count 3",
        *(f"bus.{gpu} 00000000:{0x1A + gpu:02X}:00.0" for gpu in range(3)),
        *(f"link.{gpu}.{link} 2 00000000:CE:00.0" for gpu, links in ((0, 18), (1, 17)) for link in range(links)),
        "nvlink.0.1 0",
        "nvlink.0.2 5",
        "ancestor.0.1 20",
        "ancestor.0.2 50",
        "ancestor.1.2 40",
    ]
)
"""Two GPUs on NVSwitches, of which one has lost a link, and one without NVLink in the other socket."""

BRIDGED = "\n".join(
    [
        "count 4",
        *(f"bus.{gpu} 00000000:{0x1A + gpu:02X}:00.0" for gpu in range(4)),
        "link.0.0 0 00000000:1B:00.0",
        "link.0.1 0 00000000:1B:00.0",
        "link.1.0 0 00000000:1A:00.0",
        "link.1.1 0 00000000:1A:00.0",
        "link.2.0 0 00000000:1C:00.0",
        "ancestor.0.2 10",
        "ancestor.0.3 30",
        "ancestor.1.2 77",
    ]
)
"""A pair with an NVLink bridge; what the driver says of the others is little, and odd."""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml_rig.compiled(tmp_path_factory.mktemp("nvml"), SOURCE)


def command(
    *words: str, folder: Path | None = None, machine: str = "", where: Path | None = None
) -> tuple[int, str, str]:
    """`kvstore topology …` in a process of its own: the loader reads its paths once."""
    environment = dict(os.environ)
    if folder is not None and where is not None:
        (where / "machine").write_text(machine, errors="surrogateescape")
        environment |= {"LD_LIBRARY_PATH": str(folder), "KVSTORE_NVML_STUB": str(where / "machine")}
    done = subprocess.run(
        [sys.executable, "-m", "kvstore.cli", "topology", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=environment,
    )
    return done.returncode, done.stdout, done.stderr


def test_nvswitches_lend_as_many_links_as_both_have(nvml: Path, tmp_path: Path) -> None:
    code, out, _ = command("--json", folder=nvml, machine=HGX, where=tmp_path)
    assert code == 0
    found = parsed(json.loads(out), "test")
    assert [(gpu.bus, gpu.uuid, gpu.model) for gpu in found.gpus][:1] == [("0000:1a:00.0", "GPU-0", "Stub 9000")]
    words = {ends: way.word for ends, way in found.ways.items()}
    assert words == {("gpu0", "gpu1"): "NV17", ("gpu0", "gpu2"): "SYS", ("gpu1", "gpu2"): "NODE"}


def test_bridges_count_their_own_links_and_silence_stays_unknown(nvml: Path, tmp_path: Path) -> None:
    code, out, _ = command("--json", folder=nvml, machine=BRIDGED, where=tmp_path)
    assert code == 0
    found = parsed(json.loads(out), "test")
    assert {ends: way.word for ends, way in found.ways.items()} == {
        ("gpu0", "gpu1"): "NV2",
        ("gpu0", "gpu2"): "PIX",
        ("gpu0", "gpu3"): "PHB",
    }
    assert found.way("gpu1", "gpu2").word == "?", "a level that we do not know is no level"
    assert found.way("gpu2", "gpu3").word == "?"
    assert [name for name, _ in found.ranked("gpu0")] == ["gpu1", "gpu2", "gpu3"]


def test_the_matrix_says_what_its_words_mean(nvml: Path, tmp_path: Path) -> None:
    _, out, _ = command(folder=nvml, machine=HGX, where=tmp_path)
    lines = out.splitlines()
    assert lines[0] == "GPUs by NVML"
    assert lines[2].split() == ["gpu0", "X", "NV17", "SYS"]
    assert lines[3].split() == ["gpu1", "NV17", "X", "NODE"]
    assert "  gpu2: gpu1 (NODE), gpu0 (SYS)" in lines
    assert any(line.split()[:1] == ["SYS"] for line in lines)
    assert not any(line.split()[:1] == ["PHB"] for line in lines), "words that are not used are not explained"


@pytest.mark.parametrize(("machine", "why"), [("init 9", "is there a driver"), ("init 0", "NVML: ")])
def test_nvml_that_does_not_answer_is_one_line(nvml: Path, tmp_path: Path, machine: str, why: str) -> None:
    code, out, error = command(folder=nvml, machine=machine, where=tmp_path)
    assert (code, out) == (2, "")
    assert why in error
    assert error.count("\n") == 1


def test_texts_that_are_no_utf_8_are_not_known(nvml: Path, tmp_path: Path) -> None:
    garbled = "\udcff\udcfe"
    machine = f"{BRIDGED}\nname {garbled}\nuuid {garbled}".replace("bus.2 00000000:1C:00.0", f"bus.2 {garbled}")
    code, out, error = command("--json", folder=nvml, machine=machine, where=tmp_path)
    assert (code, error) == (0, "")
    found = parsed(json.loads(out), "test")
    assert {(gpu.uuid, gpu.model) for gpu in found.gpus} == {("", "")}
    assert [gpu.bus for gpu in found.gpus] == ["0000:1a:00.0", "0000:1b:00.0", "", "0000:1d:00.0"]
    assert found.way("gpu0", "gpu1").word == "NV2"
    code, _, error = command(folder=nvml, machine=f"init 77\nerror {garbled}", where=tmp_path)
    assert code == 2
    assert error.startswith("kvstore topology: NVML cannot be asked (an error without a text)")


def test_a_host_without_gpus_says_so(nvml: Path, tmp_path: Path) -> None:
    assert command(folder=nvml, machine="count 0", where=tmp_path)[:2] == (0, "no GPUs (NVML)\n")


# --- files ------------------------------------------------------------------------------------------------------------

FILE = """
schema: kvscope.topology/1
gpus:
  - {name: a, bus: "00000000:1A:00.0"}
  - {name: b}
  - {name: c}
  - {name: d}
links:
  - {between: [a, b], way: SYS, bytes_per_second: 45e9}
  - {between: [b, a], way: SYS, bytes_per_second: 40e9}
  - {between: [a, c], way: NV4}
  - {between: [a, d], way: NV18}
"""


def test_a_file_says_it_too_and_what_was_measured_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "host.yml"
    path.write_text(FILE)
    found = read(path)
    assert found.gpus[0] == Gpu("a", "0000:1a:00.0")
    assert [(name, way.bytes_per_second) for name, way in found.ranked("a")] == [("b", 45e9), ("d", None), ("c", None)]
    assert found.way("b", "a").bytes_per_second == 40e9
    assert found.way("c", "a").word == "NV4"
    code, out, _ = command("--file", str(path), "--json")
    assert code == 0
    assert parsed(json.loads(out), "x").ways == found.ways
    assert "45.0" in "\n".join(lines_of(found))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "begins with schema"),
        ("schema: other", "begins with schema"),
        ("schema: kvscope.topology/1\ngpus: 3", "gpus is a list"),
        ("schema: kvscope.topology/1\ngpus: [{bus: x}]", r"gpus\[0\]: a GPU has a name"),
        ("schema: kvscope.topology/1\ngpus: [{name: a}, {name: a}]", "same name"),
        (FILE + "  - {between: [a, z], way: SYS}", "two GPUs that are listed"),
        (FILE + "  - {between: [a, a], way: SYS}", "two GPUs that are listed"),
        (FILE + "  - {between: [a, b], way: SYS}", "there twice"),
        (FILE + "  - {between: [a], way: SYS}", r"links\[4\]: between"),
        (FILE + "  - {between: [c, d], way: NVX}", r"links\[4\]: no way 'NVX'"),
        (FILE + "  - {between: [c, d], way: NV0}", r"links\[4\]: no way 'NV0'"),
        (FILE + "  - {between: [c, d], way: NV000}", r"links\[4\]: no way 'NV000'"),
        (FILE + "  - {between: [c, d], ways: SYS}", r"links\[4\]: no field 'ways'; there are between, way, bytes"),
        (FILE.replace("gpus:", "gpu:"), "no field 'gpu'; there are schema, source, gpus, links"),
        (FILE.replace("name: b", "name: b, buss: x"), r"gpus\[1\]: no field 'buss'"),
        (FILE.replace("name: b", "name: b, bus: 17"), r"gpus\[1\]: bus 17 is no text: write it in quotes"),
        (FILE.replace("name: b", "name: b, bus: [x]"), r"gpus\[1\]: bus \['x'\] is no text"),
        (FILE.replace("name: b", "name: b, bus: '0000:1A:00.0'"), "'a' and 'b' are both on bus 0000:1a:00.0"),
        (FILE + "  - {between: [c, d], way: SYS, bytes_per_second: -1}", "above 0"),
        (FILE + "  - {between: [c, d], way: SYS, bytes_per_second: .nan}", "above 0"),
        (FILE + "  - {between: [c, d], way: SYS, bytes_per_second: [1]}", "is no number"),
        (FILE + "  - {between: [d, a], way: PIX}", r"links\[4\]: from 'd' to 'a' it is PIX, the other way round NV18"),
        ("a: [", "line 1: not YAML"),
        ("\x00", "not YAML"),
    ],
)
def test_a_file_that_is_none_is_refused_where_it_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "host.yml"
    path.write_text(text)
    with pytest.raises(BadRequest, match=why) as told:
        read(path)
    assert str(told.value).startswith(str(path))
    assert "\n" not in str(told.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    code, _, error = command("--file", str(tmp_path / "none.yml"))
    assert code == 2
    assert error == f"kvstore topology: {tmp_path / 'none.yml'}: No such file or directory\n"


def test_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "host.yml"
    path.write_text(
        FILE.replace("name: b}", 'name: "b\\e[31m"}')
        .replace("[a, b]", '[a, "b\\e[31m"]')
        .replace("[b, a]", '["b\\e[31m", a]')
    )
    assert read(path).gpus[1].name == "b\x1b[31m"
    code, out, _ = command("--file", str(path))
    assert code == 0
    assert all(line.isprintable() for line in out.splitlines())
    assert "b\\x1b[31m" in out
    heads = [line for line in out.splitlines() if line.startswith(" " * 8)]
    assert len({len(line) for line in heads}) == 1, "columns are as wide as what is shown"


def test_what_never_ends_or_never_begins_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert command("--file", str(tmp_path / "pipe")) == (
        2, "", f"kvstore topology: {tmp_path / 'pipe'}: no regular file\n",
    )  # fmt: skip
    (tmp_path / "long.yml").write_text(" " * (MAX_BYTES + 1))
    with pytest.raises(BadRequest, match="no regular file"):
        read(Path("/dev/zero"))
    with pytest.raises(BadRequest, match="more than 4 MiB are no topology"):
        read(tmp_path / "long.yml")


def test_names_that_are_not_there_are_refused() -> None:
    two = Topology((Gpu("a"), Gpu("b")), {("a", "b"): Way("PIX")})
    with pytest.raises(BadRequest, match="no GPU 'c'; there are a, b"):
        two.way("a", "c")


@pytest.mark.parametrize(
    ("text", "bus"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("0000:1a:00.0", "0000:1a:00.0"),
        ("00010000:01:00.0", "0000:01:00.0"),
        ("", ""),
    ],
)
def test_bus_ids_have_one_form(text: str, bus: str) -> None:
    assert bus_of(text) == bus


# --- measured ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Stub]:
    with stubbed(compiled(tmp_path), tmp_path / "stub") as made:
        yield made


def test_every_pair_is_copied_both_ways_and_keeps_its_word(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvstore.topology import measure

    monkeypatch.setattr(measure, "COPY_BYTES", 1 << 16)
    known = Topology((Gpu("gpu0", "0000:1a:00.0"), Gpu("far", "0000:ff:00.0")), {("gpu0", "far"): Way("SYS")}, "NVML")
    found = measure.measured(known)
    assert [gpu.name for gpu in found.gpus] == ["gpu0", "far", "cuda:1"]
    for ends in (("gpu0", "cuda:1"), ("cuda:1", "gpu0")):
        assert (found.way(*ends).bytes_per_second or 0) > 0
    assert found.way("gpu0", "far") == Way("SYS")
    assert found.source == "NVML, measured"
    counts = stub.counts()
    assert counts["cudaMemcpyAsync"] == 2 * (measure.ROUNDS + 1)
    assert counts["cudaDeviceEnablePeerAccess"] == 2
    assert counts["cudaMalloc"] == counts["cudaFree"] == 4
    measure.measured(known)  # peer access is on already: no error


def test_gpus_that_do_not_reach_each_other_are_measured_all_the_same(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvstore.topology import measure

    monkeypatch.setattr(measure, "COPY_BYTES", 1 << 16)
    stub.set("apart", 1)
    found = measure.measured(Topology((), {}, ""))
    assert len(found.ways) == 2
    assert not stub.counts()["cudaDeviceEnablePeerAccess"]
