"""Decoded shards, memory-mapped: from sample ids to their bytes, labels and keys.

Shards are mapped when first needed, and at most `max_open` stay open: the one opened first is
closed, and its pages stay in the page cache. A shard in use by a running copy stays mapped until
that ends.

On opening, a shard's length, layout and labels are checked; the image of each row is checked
against its CRC-32C when it is first read from a mapping (`gather`), so damage is found before it is
trained on.
"""

import resource
import threading
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipelines.core.errors import HeadraceError
from trainers.reader.gather import ALL_SOUND, NOT_MAPPED, NUM_ADDRESSES, crc32c_address, gather
from trainers.reader.index import Index, SplitIndex, mend_command
from trainers.reader.mapped import Shard, open_shard
from trainers.reader.remote import RemoteShards
from trainers.reader.substitute import Report, Substitution, candidates


class Located(NamedTuple):
    """The mapped shards that some samples lie in; they stay mapped as long as this lives."""

    shards: list[Shard]
    first_ids: NDArray[np.int64]  # [s] ascending
    addresses: NDArray[np.int64]  # [s, NUM_ADDRESSES], see `gather`


class Shards:
    """The shards of one split.

    Safe to use from several threads.

    Args:
        index, split: what is read.
        num_at_once: shards that may be read together.
        remote: what fetches them, where they are behind a URL.
        report: is told of damaged samples, which are then replaced; None: damage is an error.

    Raises:
        HeadraceError: `num_at_once` shards, those that may be read together, are more than may be
            open.
    """

    def __init__(
        self,
        index: Index,
        split: str,
        num_at_once: int,
        remote: RemoteShards | None = None,
        report: Report | None = None,
    ) -> None:
        self.index = index
        self._remote = remote
        self._report = report
        self._substituting = threading.Lock()
        self._substitutes: dict[int, int] = {}
        self.split: SplitIndex = index.split(split)
        self.max_open = _max_open_files()
        if min(num_at_once, len(self.split.names)) > self.max_open:
            raise HeadraceError(
                "More shards are read at a time than files may be open",
                expected=f"at most {self.max_open} shards in a window (a quarter of `ulimit -n`)",
                found=str(num_at_once),
                fix="lower window_shards in params.yaml, or raise the limit with `ulimit -n`",
            )
        self._open: dict[int, Shard] = {}  # The one opened first comes first.
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
            HeadraceError: a shard is damaged or missing; so is a sample, and none may replace it.
        """
        done = 0
        while (end := self._gather(ids[done:], images[done:], labels[done:])) != ALL_SOUND:
            place = done + end
            self._substitute(int(ids[place]), images[place:][:1], labels[place:][:1])
            done = place + 1

    def _gather(
        self, ids: NDArray[np.int64], images: NDArray[np.uint8], labels: NDArray[np.int64]
    ) -> int:
        # Holds the mappings until the copy is done, whatever other threads open and close.
        located = self._all or self._locate_all()
        checksum = crc32c_address()
        end = gather(ids, located.first_ids, located.addresses, images, labels, checksum)
        if end == NOT_MAPPED:
            located = self.locate(ids[ids >= 0])
            end = gather(ids, located.first_ids, located.addresses, images, labels, checksum)
        return int(end)

    def _substitute(self, sample: int, image: NDArray[np.uint8], label: NDArray[np.int64]) -> None:
        if self._report is None:
            raise self.damage(sample)
        # One at a time: what is out of turn has room for one shard in the cache of a bucket.
        with self._substituting:
            for other in candidates(self.index.version, self.split, sample):
                if self._gather(np.array([other]), image, label) == ALL_SOUND:
                    break
            else:
                raise self.damage(sample)
            if sample not in self._substitutes:
                self._substitutes[sample] = other
                key, other_key = self.keys(np.array([sample, other]))
                where = str(self.damage(sample).where)
                self._report(Substitution(sample, key, other, other_key, where))
            self.unmap_unneeded()

    @property
    def folder(self) -> Path:
        """Where the files are that are mapped."""
        return self._remote.cache.folder if self._remote else self.split.folder

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

    def _get(self, number: int) -> Shard:
        shard = self._open.get(number)
        if shard is None:
            shard = open_shard(self.index, self.split, number, self._remote)
            self._open[number] = shard
            self._addresses[number] = shard.addresses
            self._all = None
            if len(self._open) > self.max_open:
                self._close(next(iter(self._open)))
        return shard


def _max_open_files() -> int:
    """A quarter of what the process may open: there are other readers, sockets and libraries."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft_limit // 4)
