"""What tests of the trainers share: data to train on, and what an undisturbed run writes."""

import os
from pathlib import Path

import pytest

from tests.trainers.runs import contents, make_run, set_params, train_here, write_files


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("data")) / "decoded"


@pytest.fixture
def project(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to train in, current, with data that all tests share."""
    (tmp_path / "decoded").symlink_to(data)
    set_params(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, bytes]:
    """Every file of a run with `PARAMS` on one rank that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "decoded").symlink_to(data)
    set_params(folder)
    here = Path.cwd()
    os.chdir(folder)
    try:
        return contents(train_here(folder))
    finally:
        os.chdir(here)


@pytest.fixture
def finished(project: Path, undisturbed: dict[str, bytes]) -> Path:
    """The folder of that run, to change freely, in a project with its data and params."""
    return write_files(project / "runs" / "train", undisturbed)
