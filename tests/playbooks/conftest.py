"""What the tests of the playbooks share: the catalogue, the rules, and a folder of composed recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from playbooks.playbook import Playbook, load_playbooks
from probes.rules import RuleSet


@pytest.fixture(scope="session")
def playbooks() -> list[Playbook]:
    return load_playbooks()


@pytest.fixture(scope="session")
def rules() -> RuleSet:
    return RuleSet.load()


@pytest.fixture(scope="session")
def shelf_folder(request: pytest.FixtureRequest) -> Path:
    """Recordings of the lab's scenarios, kept between runs; the lab's own tests fill the same folder."""
    assert request.config.cache is not None
    return Path(request.config.cache.mkdir("lab"))
