"""A project in which everything is in step, as the current folder of every test here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import mill


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    mill.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    with mill.importable(tmp_path):
        yield
