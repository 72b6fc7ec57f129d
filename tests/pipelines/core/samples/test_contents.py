"""Files are read once; whatever shows that one may have changed has it read again."""

import hashlib
import json
import os
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core import stage
from pipelines.core.params import params
from pipelines.core.reasons import Reason
from pipelines.core.samples import contents, raw
from pipelines.core.samples.contents import Content

MAX_BYTES = 1000
FILES = {"a.bin": b"aaa", "b.bin": b"bbb", "c.bin": b"ccc"}
read: list[str] = []


@params
class Params:
    pass


@pytest.fixture(autouse=True)
def in_folder_with_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the files loose, half in an archive, all of them settled."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setattr(contents, "_SETTLED_NS", 0)
    Path("params.yaml").write_text(json.dumps({"see": {}}))
    Path("raw").mkdir()
    (Path("raw") / "loose.bin").write_bytes(b"loose")
    write_archive(FILES)

    def noted(folder: Path, max_bytes: int, file: raw.RawFile) -> Content:
        read.append(file.path)
        return whole(folder, max_bytes, file)

    whole = contents._content
    monkeypatch.setattr(contents, "_content", noted)


def write_archive(files: dict[str, bytes]) -> None:
    with zipfile.ZipFile("raw/files.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def seen(max_bytes: int = MAX_BYTES) -> tuple[dict[str, Content], list[str]]:
    """The content of each file, and the files that were read for it."""
    found: list[Content] = []
    files = raw.list_files(Path("raw"))

    def run(job: stage.Job[Any]) -> dict[str, Any]:
        found.extend(contents.contents(job, Path("raw"), files, max_bytes))
        return {}

    read.clear()
    stage.execute(SimpleNamespace(Params=Params, run=run), "see", ["--out", "out"])
    return {file.path: one for file, one in zip(files, found, strict=True)}, sorted(read)


def sha256(data: bytes) -> Content:
    return Content(hashlib.sha256(data).hexdigest())


EXPECTED = {name: sha256(data) for name, data in {**FILES, "loose.bin": b"loose"}.items()}


def test_every_file_is_read_once() -> None:
    assert seen() == (EXPECTED, sorted(EXPECTED))
    assert seen() == (EXPECTED, [])


def test_an_archive_that_changed_is_read_and_no_other_file() -> None:
    seen()
    write_archive({**FILES, "a.bin": b"new"})
    assert seen() == ({**EXPECTED, "a.bin": sha256(b"new")}, sorted(FILES))
    assert seen()[1] == []


def test_a_change_that_keeps_the_size_is_seen() -> None:
    seen()
    with Path("raw/loose.bin").open("r+b") as file:
        file.write(b"L")
    assert seen()[0]["loose.bin"] == sha256(b"Loose")


def test_another_file_of_the_same_size_and_time_is_seen() -> None:
    seen()
    path = Path("raw/loose.bin")
    before = path.stat()
    Path("raw/other").write_bytes(b"other")
    os.utime("raw/other", ns=(before.st_atime_ns, before.st_mtime_ns))
    Path("raw/other").replace(path)
    assert seen()[0]["loose.bin"] == sha256(b"other")


def test_a_file_that_was_written_just_now_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_SETTLED_NS", 3600 * 10**9)
    assert seen()[1] == seen()[1] == sorted(EXPECTED)


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_jumps_hides_no_change(monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    seen()
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + hours * 3600 * 10**9)
    Path("raw/loose.bin").write_bytes(b"LOOSE")
    assert seen()[0] == {**EXPECTED, "loose.bin": sha256(b"LOOSE")}


def test_files_that_cannot_be_read_tell_why_and_are_tried_again() -> None:
    found, _ = seen(max_bytes=4)
    assert found["loose.bin"] == Content("", Reason.TOO_MANY_BYTES, "5 bytes, and the limit is 4")
    assert seen(max_bytes=4)[1] == ["loose.bin"]


@pytest.mark.parametrize("harm", [b"", b"garbage", b"0" * 64 + b"\nPAR1"])
def test_a_damaged_ledger_is_begun_anew(harm: bytes) -> None:
    seen()
    (ledger,) = Path(".state/contents").iterdir()
    ledger.write_bytes(harm)
    assert seen() == (EXPECTED, sorted(EXPECTED))


def test_a_state_that_cannot_be_written_costs_time_alone() -> None:
    Path(".state").write_text("no folder")
    assert seen() == seen() == (EXPECTED, sorted(EXPECTED))


def test_groups_are_neighbours_bounded_in_number_and_bytes() -> None:
    def sizes(num_bytes: int, num_files: int) -> Sequence[int]:
        files = [raw.RawFile(f"{n}", f"{n}", "", num_bytes) for n in range(num_files)]
        groups = list(contents._groups(files))
        assert [file for group in groups for file in group] == files
        return [len(group) for group in groups]

    assert sizes(1, 1100) == [512, 512, 76]
    assert sizes(40 << 20, 5) == [2, 2, 1]
    assert sizes(1, 0) == []
