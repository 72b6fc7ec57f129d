"""Decoded shards, memory-mapped: from sample ids to their bytes, labels and keys.

Shards are mapped when first needed, and at most `max_open` stay open: the one opened first is
closed, and its pages stay in the page cache. A shard in use by a running copy stays mapped until
that ends.

On opening, a shard's length, layout and labels are checked; the image of each row is checked
against its CRC-32C when it is first read from a mapping (`gather`), so damage is found before it is
trained on.
"""

import mmap
import os
import resource
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.core.errors import HeadraceError
from trainers.reader.gather import ALL_SOUND, NOT_MAPPED, NUM_ADDRESSES, crc32c_address, gather
from trainers.reader.index import Index, SplitIndex, mend_command
from trainers.reader.remote import RemoteShards


class Located(NamedTuple):
    """The mapped shards that some samples lie in; they stay mapped as long as this lives."""

    shards: list["_Shard"]
    first_ids: NDArray[np.int64]  # [s] ascending
    addresses: NDArray[np.int64]  # [s, NUM_ADDRESSES], see `gather`


class Shards:
    """The shards of one split.

    Safe to use from several threads.

    Raises:
        HeadraceError: `num_at_once` shards, those that may be read together, are more than may be
            open.
    """

    def __init__(
        self, index: Index, split: str, num_at_once: int, remote: RemoteShards | None = None
    ) -> None:
        self.index = index
        self._remote = remote
        self.split: SplitIndex = index.split(split)
        self.max_open = _max_open_files()
        if min(num_at_once, len(self.split.names)) > self.max_open:
            raise HeadraceError(
                "More shards are read at a time than files may be open",
                expected=f"at most {self.max_open} shards in a window (a quarter of `ulimit -n`)",
                found=str(num_at_once),
                fix="lower window_shards in params.yaml, or raise the limit with `ulimit -n`",
            )
        self._open: dict[int, _Shard] = {}  # The one opened first comes first.
        self._all: Located | None = None  # Made anew after a change of what is open.
        self._addresses = np.zeros((len(self.split.names), NUM_ADDRESSES), np.int64)
        self._lock = threading.Lock()

    def read(
        self, ids: NDArray[np.int64], images: NDArray[np.uint8], labels: NDArray[np.int64]
    ) -> None:
        """Copy samples out of the shards, checking the checksum of each that is touched first.

        Args:
            ids: [m] int64 sample ids; negative ones are padding.
            images: [m, H * W * C] uint8, contiguous, to be filled; zeros where padded.
            labels: [m] int64, contiguous, to be filled; `gather.IGNORED_LABEL` where padded.

        Raises:
            HeadraceError: a sample or shard is damaged or missing.
        """
        # Holds the mappings until the copy is done, whatever other threads open and close.
        located = self._all or self._locate_all()
        checksum = crc32c_address()
        end = gather(ids, located.first_ids, located.addresses, images, labels, checksum)
        if end == NOT_MAPPED:
            located = self.locate(ids[ids >= 0])
            end = gather(ids, located.first_ids, located.addresses, images, labels, checksum)
        if end != ALL_SOUND:
            raise self.damage(int(ids[end]))

    def locate(self, ids: NDArray[np.int64]) -> Located:
        """Map the shards of `ids` ([m] int64, no padding), opening those that are closed."""
        needed = np.unique(np.searchsorted(self.split.first_ids, ids, side="right") - 1)
        if self._remote:  # Not under the lock: others go on with what is there.
            self._remote.fetch([number for number in needed.tolist() if number not in self._open])
        with self._lock:
            shards = [self._get(number) for number in needed.tolist()]
        addresses = np.array([shard.addresses for shard in shards], np.int64)
        return Located(shards, self.split.first_ids[needed], addresses.reshape(-1, NUM_ADDRESSES))

    def _locate_all(self) -> Located:
        """All shards, with zeros for the addresses of those that are not open."""
        with self._lock:
            self._all = Located(
                list(self._open.values()), self.split.first_ids, self._addresses.copy()
            )
            return self._all

    def keys(self, ids: NDArray[np.int64]) -> list[str]:
        """The keys of `ids` ([m] int64, no padding), in the same order."""
        numbers = np.searchsorted(self.split.first_ids, ids, side="right") - 1
        rows = ids - self.split.first_ids[numbers]
        keys: dict[int, Any] = {}
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            with self._lock:
                column = self._get(number).batch.column("key").take(pa.array(rows[places]))
            keys.update(zip(places.tolist(), column.to_pylist(), strict=True))
            self.unmap_unneeded()
        return [keys[place] for place in range(len(ids))]

    def unmap_unneeded(self) -> None:
        """Let go of what no batch in flight is read from, where room in a cache depends on it."""
        if self._remote:
            self._unmap(self._remote.unneeded())

    def move_on(self, epoch: int, step: int) -> None:
        """Say that a batch is about to be read; lets go likewise."""
        if self._remote:
            self._unmap(self._remote.move_on(epoch, step))

    def damage(self, sample: int) -> HeadraceError:
        """What to tell about a sample whose image does not match its checksum."""
        located = self.locate(np.array([sample]))
        shard, row = located.shards[0], sample - int(located.first_ids[0])
        found = google_crc32c.value(shard.images[row].tobytes())
        return HeadraceError(
            "A sample is damaged: its image does not match its checksum",
            where=f"{shard.path}:row {row}, key {shard.batch.column('key')[row].as_py()!r}",
            expected=f"CRC-32C {shard.batch.column('crc32c')[row].as_py():08x}",
            found=f"CRC-32C {found:08x}",
            fix=mend_command(shard.path),
        )

    def close(self) -> None:
        """Unmap everything."""
        with self._lock:
            for number in list(self._open):
                self._close(number)

    def _unmap(self, numbers: list[int]) -> None:
        if numbers:
            with self._lock:
                for number in numbers:
                    self._close(number)

    def _close(self, number: int) -> None:
        if self._open.pop(number, None):
            self._addresses[number] = 0
            self._all = None

    def _get(self, number: int) -> "_Shard":
        shard = self._open.get(number)
        if shard is None:
            shard = _open_shard(self.index, self.split, number, self._remote)
            self._open[number] = shard
            self._addresses[number] = shard.addresses
            self._all = None
            if len(self._open) > self.max_open:
                self._close(next(iter(self._open)))
        return shard


@dataclass(frozen=True, eq=False)
class _Shard:
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


def _open_shard(
    index: Index, split: SplitIndex, number: int, remote: RemoteShards | None
) -> _Shard:
    file = remote.open(number) if remote else _open_file(split.path(number))
    path, num_rows = Path(file.name), int(split.num_rows[number])
    mapping = _map(file, path, int(split.num_bytes[number]))
    try:
        batch = pa.ipc.open_file(pa.py_buffer(mapping)).get_batch(0)
        # Costs about 0.1 us a row; a damaged offset must not lead out of the mapping.
        batch.validate(full=True)
        _check_layout(path, batch, _schema(index.shape), num_rows)
        tensors = cast("pa.ExtensionArray[Any]", batch.column("image"))
        images = tensors.storage.flatten().to_numpy().reshape(num_rows, -1)
        labels = batch.column("label").to_numpy()
        checksums = batch.column("crc32c").to_numpy()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(path, "an Arrow IPC file of one record batch", str(error)) from None
    _check_labels(path, batch, labels, len(index.labels))
    return _Shard(path, batch, images, labels, checksums, np.zeros(num_rows, np.uint8))


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


def _max_open_files() -> int:
    """A quarter of what the process may open: there are other readers, sockets and libraries."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft_limit // 4)
