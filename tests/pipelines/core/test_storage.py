import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipelines.core import storage


def test_a_hash_is_that_of_the_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc" * 1_000_000)
    assert storage.sha256_file(tmp_path / "a") == hashlib.sha256(b"abc" * 1_000_000).hexdigest()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    storage.write_text(path, "old")

    def fail() -> None:
        with storage.atomic_file(path) as temporary:
            temporary.write_text("new, in part")
            raise OSError

    with pytest.raises(OSError, match=r"^$"):
        fail()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_file_is_replaced_and_its_folder_made(tmp_path: Path) -> None:
    path = tmp_path / "b" / "a"
    storage.write_text(path, "old")
    storage.write_text(path, "new")
    assert path.read_text() == "new"


def test_many_writers_of_one_file_leave_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: storage.write_text(path, f"{number:02d}" * 9), range(80)))
    text = path.read_text()
    assert text == text[:2] * 9
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_folder_replaces_another_in_full(tmp_path: Path) -> None:
    target, new = tmp_path / "out", tmp_path / ".tmp-out"
    target.mkdir()
    (target / "stale").touch()
    (new / "deep").mkdir(parents=True)
    (new / "deep" / "fresh").write_text("x")
    storage.replace_folder(new, target)
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "out",
        "out/deep",
        "out/deep/fresh",
    ]


KILLED = """
import os, signal, sys
from pathlib import Path
from pipelines.core import storage
calls = 0
def killing(call):
    def wrapped(*arguments, **options):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return wrapped
os.fsync, os.rename, os.replace = killing(os.fsync), killing(os.rename), killing(os.replace)
storage.write_text(Path(sys.argv[1]), "new")
"""


def test_a_write_killed_at_any_step_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    seen = set()
    for step in range(1, 5):
        path.write_text("old")
        done = subprocess.run([sys.executable, "-c", KILLED, path, str(step)], check=False)
        seen.add((done.returncode, path.read_text()))
    assert {text for _, text in seen} == {"old", "new"}
    assert (-9, "old") in seen
    assert (0, "new") in seen


def test_state_lies_in_the_main_repository_when_dvc_runs_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert storage.state_folder() == Path(".state")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert storage.state_folder() == tmp_path / ".state"


@pytest.mark.parametrize("num_files", [3, 300])
def test_a_tree_is_flushed_whole_whatever_its_size(
    tmp_path: Path, num_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[str] = set()
    whole_file_systems: list[Path] = []
    monkeypatch.setattr(storage, "fsync_path", lambda path: flushed.add(path.name))
    real = storage._sync_file_system

    def sync(folder: Path) -> None:
        real(folder)
        whole_file_systems.append(folder)

    monkeypatch.setattr(storage, "_sync_file_system", sync)
    (tmp_path / "deep").mkdir()
    for index in range(num_files):
        (tmp_path / "deep" / str(index)).touch()
    storage.fsync_tree(tmp_path)
    names = {*map(str, range(num_files)), "deep", tmp_path.name}
    assert flushed == names or whole_file_systems == [tmp_path]
    assert bool(flushed) != bool(whole_file_systems)
