"""A project of two data versions, for verbs that tell of them."""

from pathlib import Path

import pytest

from tests.edited import make_edited
from tests.project import Shared


@pytest.fixture(scope="session")
def edited(shared: Shared, built: Path) -> Path:
    """What `tests.edited` makes: two commits of data, and a stage between `clean` and `shard`."""
    return shared("edited", lambda folder: make_edited(built, folder))


@pytest.fixture
def in_edited(edited: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as current folder; to be looked at, not changed."""
    monkeypatch.chdir(edited)
    return edited
