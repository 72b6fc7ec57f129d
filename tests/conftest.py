"""For every test: one thread a process, git as somebody else, no GPU test without a GPU."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from tests.project import Shared, make_project, run

ENVIRONMENT = {
    # Tests run side by side; each process that they start takes one core.
    "OMP_NUM_THREADS": "1",
    # Commits made in temporary repositories depend on nobody's configuration.
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.com",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.com",
    "DVC_NO_ANALYTICS": "1",
}
MACHINE = (
    "HEADRACE_CLUSTER",
    "HEADRACE_NUM_WORKERS",
    "HEADRACE_NUM_RANKS",
    "HEADRACE_CACHE_FOLDER",
    "HEADRACE_CACHE_MAX_GIB",
    "HEADRACE_MEMO_MAX_GIB",
    "HEADRACE_BACKUP_URL",
)
"""How this machine runs stages; a test that is about it sets its own."""

os.environ.update(ENVIRONMENT)
for name in MACHINE:
    os.environ.pop(name, None)

# The same examples in each run, and no deadline: two tests share a core.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` where no NVIDIA driver is loaded."""
    if Path("/dev/nvidiactl").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Shared:
    """Makes a folder once for all workers: `shared(name, make)`; look at it, change only a copy."""
    base = tmp_path_factory.getbasetemp()
    base = base if worker_id == "master" else base.parent

    def make_once(name: str, make: Callable[[Path], None]) -> Path:
        folder = base / name
        with FileLock(base / f"{name}.lock"):
            if not folder.exists():
                making = base / f"{name}.making"
                making.mkdir()
                make(making)
                making.rename(folder)
        return folder

    return make_once


@pytest.fixture(scope="session")
def built(shared: Shared) -> Path:
    """A small project after `dvc repro`."""

    def make(project: Path) -> None:
        make_project(project)
        run(project, "dvc", "repro", environment={"HEADRACE_NUM_WORKERS": "1"})

    return shared("built", make)
