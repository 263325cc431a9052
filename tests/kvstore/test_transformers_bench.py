"""`kvstore bench sessions`: the store's second turn computes what a kept cache would, from another process."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed (extra transformers)")
pytest.importorskip("transformers", reason="transformers is not installed (extra transformers)")

from kvstore.bench import sessions

REPLY = 5


def test_two_turns_by_two_processes(capsys: pytest.CaptureFixture[str]) -> None:
    found = sessions.measure("tiny", turns=2, conversations=1, shards=1, threads=1, reply=REPLY)
    first, second = found["turns"]
    behind = sessions.USER + 1 + REPLY - 1  # the question, the last token of the reply before, the new reply
    assert second["prompt"] == sessions.SYSTEM + 2 * sessions.USER + REPLY
    assert first["none"]["computed"] == first["kept"]["computed"] == first["prompt"] + REPLY - 1
    assert second["none"]["computed"] == second["prompt"] + REPLY - 1
    assert second["kept"]["computed"] == second["store"]["computed"] == behind
    sessions.show("tiny", found)
    assert f"{second['prompt']:8d}{second['none']['computed']:8.0f}{behind:8d}{behind:8d}" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        sessions.run(["--turns", "0"])
