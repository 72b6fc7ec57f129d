"""Local sources are listed whole, links followed, and copied byte for byte."""

import hashlib
import os
from pathlib import Path

import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.sources.files import SourceFile, copy_local, list_source
from pipelines.core.sources.remote import Patience

PATIENCE = Patience(1, 1.0)


def listed(url: str, folder: Path) -> dict[str, int | None]:
    return {file.relative: file.num_bytes for file in list_source(url, folder, PATIENCE)}


def test_folder_is_listed_to_the_bottom_in_order(tmp_path: Path) -> None:
    for name in ("b/2 x.jpg", "b/.hidden", "a.jpg"):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(b"12")
    assert list(listed("source", tmp_path)) == ["a.jpg", "b/.hidden", "b/2 x.jpg"]


def test_file_is_listed_as_itself(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"123")
    assert listed("a.zip", tmp_path) == {"": 3}
    assert listed(str(tmp_path / "a.zip"), Path("/elsewhere")) == {"": 3}
    assert listed(f"file://{tmp_path}/a.zip", Path("/elsewhere")) == {"": 3}


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "1.jpg").write_bytes(b"1")
    source = tmp_path / "source"
    source.mkdir()
    (source / "far").symlink_to(outside)
    (source / "2.jpg").symlink_to(outside / "1.jpg")
    (source / "loop").symlink_to(source)
    assert listed("source", tmp_path) == {"2.jpg": 1, "far/1.jpg": 1}


def test_change_of_a_file_changes_its_version(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1")
    (before,) = list_source("a", tmp_path, PATIENCE)
    os.utime(path, ns=(5, 5))
    (after,) = list_source("a", tmp_path, PATIENCE)
    assert before.version != after.version
    assert isinstance(after, SourceFile)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (str, "The source is not there"),
        (Path.mkdir, "The source holds no file"),
        (os.mkfifo, "neither file nor folder"),
        (lambda path: path.symlink_to("nothing"), "The source is not there"),
    ],
)
def test_what_cannot_be_listed_is_an_error(tmp_path: Path, make: object, told: str) -> None:
    assert callable(make)
    make(tmp_path / "source")
    with pytest.raises(HeadraceError, match=told) as caught:
        list_source("source", tmp_path, PATIENCE)
    assert "source" in str(caught.value.where)


def test_source_without_a_file_says_where_the_data_goes(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(HeadraceError) as caught:
        list_source("source", tmp_path, PATIENCE)
    assert caught.value.where == str(tmp_path / "source")
    assert f"put the data into {tmp_path / 'source'}" in str(caught.value.fix)


@pytest.mark.parametrize("num_bytes", [0, 1, 3_000_000])
def test_copy_is_equal_and_hashed(tmp_path: Path, num_bytes: int) -> None:
    data = os.urandom(num_bytes)
    (tmp_path / "a").write_bytes(data)
    assert copy_local(tmp_path / "a", tmp_path / "b") == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "b").read_bytes() == data
    assert (tmp_path / "b").stat().st_nlink == 1


def test_copy_of_what_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="The source is not there"):
        copy_local(tmp_path / "a", tmp_path / "b")
