"""Recordings of the lab's scenarios, composed once a lab version and kept in pytest's cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from playbooks.lab.shelf import Shelf


@pytest.fixture(scope="session")
def shelf(request: pytest.FixtureRequest) -> Shelf:
    assert request.config.cache is not None
    return Shelf(Path(request.config.cache.mkdir("lab")))
