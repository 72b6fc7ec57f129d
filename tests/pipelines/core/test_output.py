import errno
import os
from pathlib import Path

import pytest

from pipelines.core import output
from pipelines.core.errors import HeadraceError


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()
    return Path("d/out")


def test_a_second_writer_is_refused_and_told_who_is_the_first(out: Path) -> None:
    with (
        output.exclusive(out),
        pytest.raises(HeadraceError, match=f"process {os.getpid()} holds its lock"),
        output.exclusive(out),
    ):
        pass
    with output.exclusive(out):
        pass


def test_a_read_only_folder_is_told_in_words(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "open", refuse)  # For root, no folder is read-only.
    with (
        pytest.raises(HeadraceError, match=r"may not be written(.|\n)*d/.lock-out: Read-only file"),
        output.exclusive(out),
    ):
        pass


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_in_a_sentence(out: Path, number: int) -> None:
    with (
        pytest.raises(HeadraceError, match="no space left on the disk") as told,
        output.no_space_told(out),
    ):
        raise OSError(number, os.strerror(number), "d/.tmp-out/x")
    assert "d/.tmp-out/x" in str(told.value)


def test_another_fault_of_the_system_keeps_its_own_words(out: Path) -> None:
    with pytest.raises(PermissionError), output.no_space_told(out):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_folder_takes_the_place_of_the_old_one(out: Path) -> None:
    out.mkdir()
    (out / "old").touch()
    Path("d/.tmp-out").mkdir()
    (Path("d/.tmp-out") / "new").touch()
    output.place(Path("d/.tmp-out"), out)
    assert [path.name for path in out.iterdir()] == ["new"]
    assert not Path("d/.tmp-out").exists()


def test_a_file_takes_the_place_of_the_old_one(out: Path) -> None:
    page = out.with_suffix(".html")
    page.write_text("old")
    Path("d/.tmp-out").mkdir()
    (Path("d/.tmp-out") / page.name).write_text("new")
    output.place(Path("d/.tmp-out"), page)
    assert page.read_text() == "new"
    assert not Path("d/.tmp-out").exists()
