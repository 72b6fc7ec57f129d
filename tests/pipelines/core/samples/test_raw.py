"""raw/ as a tree in which archives are open: every file once, nothing outside, nothing raised."""

import io
import os
import random
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.reasons import Reason
from pipelines.core.samples import archives, raw
from pipelines.core.samples.raw import RawFile, ReadFault

LIMIT = 1 << 20
E_ACUTE, E_AND_ACUTE = "\u00e9", "e\u0301"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    raw._kept.clear()


def loose(folder: Path, name: str, data: bytes = b"1") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def zipped(folder: Path, name: str, members: dict[str, bytes]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)


def tarred(folder: Path, name: str, members: dict[str, bytes]) -> None:
    with tarfile.open(folder / name, "w") as archive:
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def paths(folder: Path) -> list[str]:
    return [file.path for file in raw.list_files(folder) if file.fault is None]


def faults(folder: Path) -> dict[str, Reason]:
    return {file.path: file.fault for file in raw.list_files(folder) if file.fault}


def refusal(folder: Path, container: str, member: str = "", max_bytes: int = LIMIT) -> Reason:
    with pytest.raises(ReadFault) as caught:
        raw.read(folder, container, member, max_bytes)
    return caught.value.reason


def test_archives_count_as_unpacked_where_they_lie(tmp_path: Path) -> None:
    loose(tmp_path, "labels.csv")
    zipped(tmp_path, "2026/cats.ZIP", {"cat/1.jpg": b"cat"})
    tarred(tmp_path, "dogs.tar", {"./dog/1.jpg": b"doggy"})
    assert raw.list_files(tmp_path) == [
        RawFile("2026/cat/1.jpg", "2026/cats.ZIP", "cat/1.jpg", 3),
        RawFile("dog/1.jpg", "dogs.tar", "./dog/1.jpg", 5),
        RawFile("labels.csv", "labels.csv", "", 1),
    ]


def test_listed_files_can_be_read(tmp_path: Path) -> None:
    loose(tmp_path, "a b/.c", b"loose")
    zipped(tmp_path, "a.zip", {"x.jpg": b"zip"})
    tarred(tmp_path, "b.tar", {"y.jpg": b"tar"})
    read = {
        file.path: raw.read(tmp_path, file.container, file.member, LIMIT)
        for file in raw.list_files(tmp_path)
    }
    assert read == {"a b/.c": b"loose", "x.jpg": b"zip", "y.jpg": b"tar"}


def test_archive_inside_an_archive_stays_a_file(tmp_path: Path) -> None:
    zipped(tmp_path, "outer.zip", {"inner.zip": b"PK", "inner.tar": b"x"})
    assert paths(tmp_path) == ["inner.tar", "inner.zip"]


@pytest.mark.parametrize(
    "member", ["../evil", "a/../../evil", "/etc/evil", "C:/evil", "..\\evil", "C:\\evil", "\\evil"]
)
def test_member_that_leaves_its_folder_is_a_row(tmp_path: Path, member: str) -> None:
    zipped(tmp_path, "a.zip", {member: b"1", "good": b"2"})
    assert paths(tmp_path) == ["good"]
    (fault,) = [file for file in raw.list_files(tmp_path) if file.fault]
    assert (fault.fault, fault.container) == (Reason.UNSAFE_PATH, "a.zip")


def test_windows_separators_in_a_zip_are_folders(tmp_path: Path) -> None:
    zipped(tmp_path, "a.zip", {"cat\\1.jpg": b"1"})
    assert paths(tmp_path) == ["cat/1.jpg"]


def test_paths_are_composed_and_names_on_disk_are_not(tmp_path: Path) -> None:
    loose(tmp_path, f"{E_AND_ACUTE}.jpg")
    zipped(tmp_path, "a.zip", {f"z{E_AND_ACUTE}.jpg": b"1"})
    first, second = sorted(raw.list_files(tmp_path), key=lambda file: file.member)
    assert (first.path, first.container) == (f"{E_ACUTE}.jpg", f"{E_AND_ACUTE}.jpg")
    assert (second.path, second.member) == (f"z{E_ACUTE}.jpg", f"z{E_AND_ACUTE}.jpg")
    assert raw.read(tmp_path, first.container, "", LIMIT) == b"1"


def test_links_are_followed_inside_and_refused_outside(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    loose(tmp_path, "secret/file")
    loose(folder, "real.jpg")
    (folder / "inside.jpg").symlink_to("real.jpg")
    (folder / "outside.jpg").symlink_to(tmp_path / "secret" / "file")
    (folder / "outside").symlink_to(tmp_path / "secret")
    (folder / "dangling").symlink_to("nothing")
    (folder / "loop").symlink_to(folder)
    assert paths(folder) == ["inside.jpg", "real.jpg"]
    assert faults(folder) == {
        "outside": Reason.UNSAFE_PATH,
        "outside.jpg": Reason.UNSAFE_PATH,
        "dangling": Reason.UNREADABLE,
        "loop": Reason.UNREADABLE,
    }


def test_pipe_is_a_row_and_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert faults(tmp_path) == {"pipe.jpg": Reason.UNREADABLE}


def test_loose_name_that_is_no_utf8_is_a_row(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\xff.jpg")).write_bytes(b"1")
    (file,) = raw.list_files(tmp_path)
    assert file.fault == Reason.UNREADABLE
    assert file.path.encode()


def test_broken_archive_is_a_row_beside_what_came_before(tmp_path: Path) -> None:
    tarred(tmp_path, "a.tar", {"1": bytes(600), "2": bytes(600)})
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[: 1536 + 700])
    loose(tmp_path, "b.zip", b"no zip")
    assert paths(tmp_path) == ["1"]
    assert faults(tmp_path) == {
        "a.tar": Reason.UNREADABLE,
        "a.tar/2": Reason.TRUNCATED,
        "b.zip": Reason.UNREADABLE,
    }


def test_limit_of_bytes_holds_for_loose_files(tmp_path: Path) -> None:
    loose(tmp_path, "big", bytes(11))
    assert refusal(tmp_path, "big", max_bytes=10) == Reason.TOO_MANY_BYTES
    assert raw.read(tmp_path, "big", "", 11) == bytes(11)


def test_file_that_is_gone_is_missing(tmp_path: Path) -> None:
    zipped(tmp_path, "a.zip", {"x": b"1"})
    assert refusal(tmp_path, "gone") == Reason.MISSING_FILE
    assert refusal(tmp_path, "gone.zip", "x") == Reason.MISSING_FILE
    assert refusal(tmp_path, "a.zip", "y") == Reason.MISSING_FILE


def test_replaced_archive_is_looked_at_again(tmp_path: Path) -> None:
    zipped(tmp_path, "a.zip", {"x": b"old"})
    assert raw.read(tmp_path, "a.zip", "x", LIMIT) == b"old"
    zipped(tmp_path, "a.zip", {"x": b"newer"})
    assert raw.read(tmp_path, "a.zip", "x", LIMIT) == b"newer"


def test_missing_raw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="There is no raw data"):
        raw.list_files(tmp_path / "raw")


def members_of(count: int) -> dict[str, bytes]:
    return {f"{index:05d}": random.Random(index).randbytes(200) for index in range(count)}


def right(folder: Path, index: int) -> bool:
    name = f"{index:05d}"
    expected = random.Random(index).randbytes(200)
    return all(raw.read(folder, box, name, LIMIT) == expected for box in ("a.zip", "b.tar"))


def test_threads_and_processes_read_one_archive_at_once(tmp_path: Path) -> None:
    members = members_of(300)
    zipped(tmp_path, "a.zip", members)
    tarred(tmp_path, "b.tar", members)
    check = partial(right, tmp_path)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(check, list(range(300)) * 3))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        assert all(processes.map(check, range(300), chunksize=50))


def test_table_of_an_archive_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zipped(tmp_path, "a.zip", members_of(20))
    opened = []
    real = archives.open_archive

    def slow(path: Path) -> object:
        opened.append(threading.get_ident())
        time.sleep(0.05)
        return real(path)

    monkeypatch.setattr(raw, "open_archive", slow)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: raw.read(tmp_path, "a.zip", f"{i:05d}", LIMIT), range(20)))
    assert len(opened) == 1


def test_tables_are_forgotten_when_they_grow_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "_MAX_KEPT_MEMBERS", 25)
    for name in ("a.zip", "b.zip", "c.zip"):
        zipped(tmp_path, name, members_of(10))
    raw.list_files(tmp_path)
    assert len(raw._kept) == 2
    assert raw.read(tmp_path, "a.zip", "00000", LIMIT) == members_of(1)["00000"]
    assert len(raw._kept) == 2


def test_reading_keeps_no_file_open(tmp_path: Path) -> None:
    zipped(tmp_path, "a.zip", {"x": b"1"})
    before = len(list(Path("/proc/self/fd").iterdir()))
    raw.read(tmp_path, "a.zip", "x", LIMIT)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_large_archive_is_no_burden(tmp_path: Path) -> None:
    zipped(tmp_path, "a.zip", {f"{index:05d}": b"1" for index in range(20_000)})
    assert len(raw.list_files(tmp_path)) == 20_000
    started = time.perf_counter()
    for index in range(0, 20_000, 40):
        raw.read(tmp_path, "a.zip", f"{index:05d}", LIMIT)
    # 500 reads; making the table again would take 0.2 s for each of them.
    assert time.perf_counter() - started < 2
