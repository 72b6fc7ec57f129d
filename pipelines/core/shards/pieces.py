"""Pieces: what one bucket's task leaves in a folder of its own, and how a stage joins them.

A task writes its data files, the rows that it adds to the stage's index, its rejected samples and
its counts into one folder, and nothing anywhere else. The folder appears in full or not at all,
so a task can be run again, or twice at once (as Dask does when it takes a worker for dead), and a
piece can be kept and used again.

Joining moves the files (a rename each) and reads the rows; it costs nothing that grows with the
data files' size.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipelines.core import records, report
from pipelines.core.report import Json

FOLDER = ".pieces"
_ROWS, _REJECTED, _COUNTS = "rows.arrow", "rejected.parquet", "counts.json"


def folder_of(out: Path, name: str) -> Path:
    """Where the piece `name` of a stage that writes to `out` lies until it is joined."""
    return out / FOLDER / name


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to write a piece into; on success it becomes `folder`.

    Where another run of the same task was first, its piece stays: both are the same.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    private = Path(tempfile.mkdtemp(prefix=".tmp-", dir=folder.parent))
    try:
        yield private
        try:
            private.rename(folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    finally:
        shutil.rmtree(private, ignore_errors=True)


def write_account(
    folder: Path,
    *,
    rows: pa.Table,
    rejected: pa.Table,
    counts: Mapping[str, Json],
) -> None:
    """Write what a piece tells of itself.

    Args:
        folder: the piece, not yet whole.
        rows: what it adds to the stage's index.
        rejected: REJECTED rows.
        counts: whatever the stage wants to add up.
    """
    records.write_ipc(folder / _ROWS, rows)
    records.write_parquet(folder / _REJECTED, rejected)
    report.write(folder / _COUNTS, counts)


@dataclass(frozen=True)
class Joined:
    """The accounts of all pieces: in the order of the pieces, and `rejected` by key and path."""

    rows: pa.Table
    rejected: pa.Table
    counts: tuple[dict[str, Any], ...]


def join(folders: Sequence[Path], out: Path) -> Joined:
    """Move the data files of the pieces into `out`, remove the pieces, return their accounts."""
    rows, rejected, counts = [], [], []
    for folder in folders:
        rows.append(read_ipc_copy(folder / _ROWS))
        rejected.append(records.read_parquet(folder / _REJECTED))
        counts.append(json.loads((folder / _COUNTS).read_bytes()))
        for path in folder.iterdir():
            if path.name not in (_ROWS, _REJECTED, _COUNTS):
                path.rename(out / path.name)
    remove(folders)
    ordered = pa.concat_tables(rejected).sort_by([("key", "ascending"), ("path", "ascending")])
    return Joined(pa.concat_tables(rows), ordered, tuple(counts))


def remove(folders: Sequence[Path]) -> None:
    """Remove pieces, and what interrupted tasks left beside them."""
    for parent in {folder.parent for folder in folders}:
        shutil.rmtree(parent)


def read_ipc_copy(path: Path) -> pa.Table:
    """A table that does not hang on a file which is about to be removed."""
    with pa.ipc.open_file(path.read_bytes()) as reader:
        return reader.read_all()
