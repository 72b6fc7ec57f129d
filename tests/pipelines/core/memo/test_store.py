"""What is taken from the memo is what was put there; whatever else happens costs work alone."""

import errno
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from pipelines.core.memo import store
from pipelines.core.memo.store import LINK_BYTES, Missing, Store

LARGE = os.urandom(LINK_BYTES)
FILES = {"large.tar": LARGE, "small.json": b"{}"}
GIB = 1 << 30


@pytest.fixture
def memo(tmp_path: Path) -> Store:
    return Store(tmp_path / ".memo", GIB, run=1)


def write(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def fetched(memo: Store, name: str, into: Path) -> dict[str, bytes] | None:
    """The files of an entry; None without one."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir()
    try:
        memo.fetch(name, into)
    except Missing:
        return None
    return {path.name: path.read_bytes() for path in into.iterdir()}


def names(memo: Store) -> set[str]:
    return {path.name for path in memo.folder.iterdir()}


def test_what_was_put_is_fetched(memo: Store, tmp_path: Path) -> None:
    assert fetched(memo, "a", tmp_path / "out") is None
    memo.put("a", write(tmp_path / "made"))
    assert fetched(memo, "a", tmp_path / "out") == FILES
    assert names(memo) == {"a"}


def test_large_files_are_links_for_reading_and_small_ones_are_copies(
    memo: Store, tmp_path: Path
) -> None:
    made = write(tmp_path / "made")
    memo.put("a", made)
    fetched(memo, "a", tmp_path / "out")
    large = [folder / "large.tar" for folder in (made, memo.folder / "a", tmp_path / "out")]
    assert len({path.stat().st_ino for path in large}) == 1
    assert large[0].stat().st_mode & 0o222 == 0
    small = [folder / "small.json" for folder in (made, memo.folder / "a", tmp_path / "out")]
    assert len({path.stat().st_ino for path in small}) == 3
    small[2].write_bytes(b"changed")


def test_where_no_link_can_be_made_files_are_copies(
    memo: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    memo.put("a", write(tmp_path / "made"))
    assert fetched(memo, "a", tmp_path / "out") == FILES
    assert (memo.folder / "a" / "large.tar").stat().st_nlink == 1


@pytest.mark.parametrize("name", ["large.tar", "small.json", "manifest"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_harmed_entry_is_no_entry_any_more(
    memo: Store, tmp_path: Path, name: str, harm: str
) -> None:
    memo.put("a", write(tmp_path / "made"))
    path = memo.folder / "a" / name
    data = bytearray(path.read_bytes())
    path.unlink()
    if harm == "flip":
        data[len(data) // 2] ^= 1
    if harm != "remove":
        path.write_bytes(data if harm == "flip" else data[:-1])
    assert fetched(memo, "a", tmp_path / "out") is None
    assert names(memo) == set()
    memo.put("a", write(tmp_path / "again"))
    assert fetched(memo, "a", tmp_path / "out") == FILES


def test_an_out_changed_in_place_is_not_used_again(memo: Store, tmp_path: Path) -> None:
    memo.put("a", write(tmp_path / "made"))
    fetched(memo, "a", tmp_path / "out")
    out = tmp_path / "out" / "large.tar"
    out.chmod(0o644)
    with out.open("r+b") as file:
        file.write(b"changed")
    assert fetched(memo, "a", tmp_path / "other") is None


def test_an_entry_under_another_name_is_no_entry(memo: Store, tmp_path: Path) -> None:
    memo.put("a", write(tmp_path / "made"))
    (memo.folder / "a").rename(memo.folder / "b")
    assert fetched(memo, "b", tmp_path / "out") is None


def test_of_two_runs_that_make_the_same_the_first_stays(memo: Store, tmp_path: Path) -> None:
    memo.put("a", write(tmp_path / "made"))
    Store(memo.folder, GIB, 2).put("a", write(tmp_path / "also"))
    assert fetched(memo, "a", tmp_path / "out") == FILES
    assert names(memo) == {"a"}


def test_the_longest_unused_goes_first_whatever_the_clock_says(
    memo: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("abc"):
        monkeypatch.setattr(time, "time", lambda hours=number: 1e9 - 3600 * hours)
        run = store.opened(memo.folder, GIB)
        assert run.run == number + 1
        run.put(name, write(tmp_path / name))
    fetched(store.opened(memo.folder, GIB), "a", tmp_path / "out")
    assert min(store.entries(memo.folder)).name == "b"
    small = store.opened(memo.folder, 5 * LINK_BYTES // 2)
    small.sweep()
    assert names(memo) == {"a", "c"}


def test_a_run_never_pushes_out_what_it_uses_itself(tmp_path: Path) -> None:
    memo = Store(tmp_path / ".memo", 5 * LINK_BYTES // 2, run=2)
    Store(memo.folder, GIB, run=1).put("old", write(tmp_path / "old"))
    memo.put("a", write(tmp_path / "a"))
    memo.put("b", write(tmp_path / "b"))
    assert names(memo) == {"a", "b"}
    with pytest.raises(OSError, match="it is full"):
        memo.put("c", write(tmp_path / "c"))
    assert names(memo) == {"a", "b"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_what_cannot_be_kept_leaves_nothing(
    memo: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(source: Path, target: Path) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(code, os.strerror(code))

    made = write(tmp_path / "made")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", fail)
        with pytest.raises(OSError, match=os.strerror(code)):
            memo.put("a", made)
    assert names(memo) == set()


def test_a_memo_that_may_only_be_read_is_of_use(
    memo: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    memo.put("a", write(tmp_path / "made"))
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "chmod", refuse)
    assert fetched(memo, "a", tmp_path / "out") == FILES


def put_slowly(folder: Path, made: Path) -> None:
    def stop(source: Path, target: Path) -> None:
        (folder / "writing").touch()
        time.sleep(60)

    shutil.copyfile = stop  # type: ignore[assignment]
    Store(folder, GIB, 1).put("a", made)


def test_what_a_killed_run_left_is_swept_and_what_a_live_one_writes_is_not(
    memo: Store, tmp_path: Path
) -> None:
    memo.folder.mkdir()
    made = write(tmp_path / "made")
    process = multiprocessing.get_context("spawn").Process(
        target=put_slowly, args=(memo.folder, made)
    )
    process.start()
    while not (memo.folder / "writing").exists():
        time.sleep(0.01)
    memo.sweep()
    assert len(list(memo.folder.glob(".tmp-*"))) == 1
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert fetched(memo, "a", tmp_path / "out") is None
    memo.sweep()
    assert list(memo.folder.glob(".tmp-*")) == []


def test_a_memo_that_is_deleted_is_begun_anew(memo: Store, tmp_path: Path) -> None:
    memo.put("a", write(tmp_path / "made"))
    shutil.rmtree(memo.folder)
    assert fetched(memo, "a", tmp_path / "out") is None
    memo.put("a", write(tmp_path / "again"))
    assert fetched(memo, "a", tmp_path / "out") == FILES
