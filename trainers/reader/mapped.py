"""One decoded shard, mapped into memory and checked.

Length, layout and labels are checked here, so that a damaged shard can neither crash the process
nor lead a copy out of the mapping; images are checked when they are read (`gather`).
"""

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.core.errors import HeadraceError
from trainers.reader.index import Index, SplitIndex, as_numpy, mend_command
from trainers.reader.remote import RemoteShards


@dataclass(frozen=True, eq=False)
class Shard:
    """One mapped shard; the arrays keep the mapping alive."""

    path: Path
    batch: pa.RecordBatch
    images: NDArray[np.uint8]  # [rows, H * W * C]
    labels: NDArray[np.int32]
    checksums: NDArray[np.uint32]
    verified: NDArray[np.uint8]  # 1 where the row was checked since it was mapped

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the arrays lie, in the order that `gather` takes them."""
        arrays = (self.images, self.labels, self.checksums, self.verified)
        return tuple(array.ctypes.data for array in arrays)


def open_shard(index: Index, split: SplitIndex, number: int, remote: RemoteShards | None) -> Shard:
    """Map shard `number` of a split, out of its folder or what fetched it.

    Raises:
        HeadraceError: it is missing, or is not the shard that the index names.
    """
    file = remote.open(number) if remote else _open_file(split.path(number))
    path, num_rows = Path(file.name), int(split.num_rows[number])
    mapping = _map(file, path, int(split.num_bytes[number]))
    try:
        batch = pa.ipc.open_file(pa.py_buffer(mapping)).get_batch(0)
        # Costs about 0.1 us a row; a damaged offset must not lead out of the mapping.
        batch.validate(full=True)
        _check_layout(path, batch, _schema(index.shape), num_rows)
        tensors = cast("pa.ExtensionArray[Any]", batch.column("image"))
        images = as_numpy(tensors.storage.flatten()).reshape(num_rows, -1)
        labels = as_numpy(batch.column("label"))
        checksums = as_numpy(batch.column("crc32c"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, "an Arrow IPC file of one record batch", str(error)) from None
    _check_labels(path, batch, labels, len(index.labels))
    return Shard(path, batch, images, labels, checksums, np.zeros(num_rows, np.uint8))


def _check_layout(path: Path, batch: pa.RecordBatch, expected: pa.Schema, num_rows: int) -> None:
    num_nulls = sum(column.null_count for column in batch.columns)
    if not batch.schema.equals(expected) or batch.num_rows != num_rows or num_nulls:
        found = f"{batch.num_rows} rows, {num_nulls} nulls of\n{batch.schema.to_string()}"
        raise _damaged(path, f"{num_rows} rows, 0 nulls of\n{expected.to_string()}", found)


def _check_labels(
    path: Path, batch: pa.RecordBatch, labels: NDArray[np.int32], num_classes: int
) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if wrong.size:
        row = int(wrong[0])
        found = f"{labels[row]} at row {row}, key {batch.column('key')[row].as_py()!r}"
        raise _damaged(path, f"labels within 0..{num_classes - 1}", found)


def _map(file: BinaryIO, path: Path, num_bytes: int) -> mmap.mmap:
    with file:
        # A mapping longer than its file is a crash at the first touch of the missing part.
        found = os.fstat(file.fileno()).st_size
        if found != num_bytes:
            raise _damaged(path, f"{num_bytes} bytes", f"{found} bytes")
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


def _open_file(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise HeadraceError(
            "A shard of the decoded dataset is missing",
            where=str(path),
            fix="dvc checkout, or else dvc repro decode",
        ) from None


def _schema(shape: tuple[int, int, int]) -> pa.Schema:
    return pa.schema(
        [
            pa.field("image", pa.fixed_shape_tensor(pa.uint8(), shape), nullable=False),
            pa.field("key", pa.string(), nullable=False),
            pa.field("label", pa.int32(), nullable=False),
            pa.field("crc32c", pa.uint32(), nullable=False),
        ]
    )


def _damaged(path: Path, expected: str, found: str) -> HeadraceError:
    return HeadraceError(
        "A shard of the decoded dataset is damaged",
        where=str(path),
        expected=expected,
        found=found,
        fix=mend_command(path),
    )
