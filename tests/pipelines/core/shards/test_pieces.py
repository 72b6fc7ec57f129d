"""A piece is whole or not there, and the order of tasks leaves no trace."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.core import records
from pipelines.core.shards import pieces


def write(out: Path, name: str, text: str = "", rejected: Iterable[str] = ()) -> Path:
    folder = pieces.folder_of(out, name)
    with pieces.whole(folder) as piece:
        (piece / f"{name}.txt").write_text(text)
        rows = [{"key": key, "path": key, "reason": "r", "detail": ""} for key in rejected]
        pieces.write_account(
            piece,
            rows=pa.table({"name": [name]}),
            rejected=records.rejected_table(rows, "stage"),
            counts={"one": 1, "name": name},
        )
    return folder


def test_joining_moves_files_and_gathers_accounts(tmp_path: Path) -> None:
    folders = [
        write(tmp_path, "b", "B", rejected=["z", "c"]),
        write(tmp_path, "a", "A", rejected=["d"]),
    ]
    joined = pieces.join(folders, tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a.txt": "A",
        "b.txt": "B",
    }
    assert joined.rows["name"].to_pylist() == ["b", "a"]
    assert joined.rejected["key"].to_pylist() == ["c", "d", "z"]
    assert joined.counts == ({"one": 1, "name": "b"}, {"one": 1, "name": "a"})


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = pieces.folder_of(tmp_path, "a")

    def fail_midway() -> None:
        with pieces.whole(folder) as piece:
            (piece / "half").write_text("half")
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_midway()
    assert not list(folder.parent.iterdir())


def test_a_task_that_runs_twice_at_once_leaves_one_whole_piece(tmp_path: Path) -> None:
    folder = pieces.folder_of(tmp_path, "a")
    with pieces.whole(folder) as slow:
        (slow / "file").write_text("content")
        with pieces.whole(folder) as fast:
            (fast / "file").write_text("content")
    assert [path.name for path in folder.parent.iterdir()] == ["a"]
    assert (folder / "file").read_text() == "content"


def test_what_an_interrupted_task_left_does_not_reach_the_out(tmp_path: Path) -> None:
    folder = write(tmp_path, "a")
    (folder.parent / ".tmp-left").mkdir()
    (folder.parent / ".tmp-left" / "half").write_text("half")
    pieces.join([folder], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
