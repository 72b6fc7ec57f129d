"""One split of one dataset, in an order: what a reader reads from.

Ties together the index, the order, the mapped shards and, behind a URL, what fetches them.
"""

import threading
from collections import OrderedDict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.core.errors import HeadraceError
from trainers.reader.ahead import Position
from trainers.reader.index import open_index
from trainers.reader.order import Epoch, Order, Plan
from trainers.reader.readahead import Readahead
from trainers.reader.remote import open_remote
from trainers.reader.shards import Shards
from trainers.reader.substitute import Report

# Drawing the order in single batches costs three times as much a sample.
_SAMPLES_DRAWN_AT_ONCE = 16_384
_DRAWS_KEPT = 4  # More than threads can be apart.
_NAMED_SHARDS = 3  # In an error.


class Source:
    """Safe to use from threads; close it.

    Args:
        source: a folder or a URL.
        split, plan: what is read, in which order.
        logical_workers: those whose samples are read.
        num_batches: how many batches may be in flight.
        on_bad_sample: see `Reader`.

    Raises:
        HeadraceError: data are missing, damaged or less than one batch.
    """

    def __init__(
        self,
        source: Path | str,
        split: str,
        plan: Plan,
        logical_workers: range,
        num_batches: int,
        on_bad_sample: Report | None = None,
    ) -> None:
        self.index = open_index(source)
        self.order = Order(self.index.version, split, self.index.split(split).num_rows, plan)
        if not self.order.num_steps:
            raise HeadraceError(
                f"The split {split!r} has fewer samples than one batch",
                where=str(source),
                expected=f"at least {plan.batch_size} samples (batch_size)",
                found=f"{self.order.num_samples} samples",
                fix="lower batch_size in params.yaml, or let the tail 'wrap'",
            )
        self._draws = _Draws(self.order, logical_workers)
        self.remote = open_remote(self.index, self.order, num_batches)
        num_at_once = self.remote.num_held if self.remote else plan.window_shards or 1
        try:
            self.shards = Shards(self.index, split, num_at_once, self.remote, on_bad_sample)
        except BaseException:
            self.interrupt()
            raise
        self._readahead = None if self.remote else Readahead(self.shards.split, self.order)
        self._lock = threading.Lock()

    def start(self, epoch: int, step: int, num_epochs: int) -> None:
        """What is read next begins with this batch and ends with epoch `num_epochs - 1`."""
        if self.remote:
            self.remote.start(epoch, step, num_epochs)
        if self._readahead:
            with self._lock:
                self._readahead.start(num_epochs)

    def ids_at(self, position: Position) -> NDArray[np.int64]:
        """The ids of a batch, [k * b] int64: the microbatches of the workers one after another."""
        return self._draws.at(position)

    def move_on(self, position: Position) -> None:
        """Say that a batch is about to be read."""
        self.shards.move_on(*position)
        if self._readahead:
            with self._lock:
                self._readahead.move_on(*position)

    def images(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images of a few samples ([m] int64, no padding), [m, H, W, C] uint8, read anew."""
        images = np.empty((len(ids), *self.index.shape), np.uint8)
        for place in range(len(ids)):
            one = slice(place, place + 1)
            self.shards.read(ids[one], images[one].reshape(1, -1), np.empty(1, np.int64))
            self.shards.unmap_unneeded()
        return images

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread waits for a shard to be fetched, which has a watch of its own."""
        return self.remote is not None and self.remote.is_waited_for

    def describe(self, position: Position) -> str:
        """The shards that a batch is read from, for an error."""
        first_ids = self.shards.split.first_ids
        numbers = np.unique(np.searchsorted(first_ids, self.ids_at(position), side="right") - 1)
        names = [str(self.shards.split.names[int(number)]) for number in numbers if number >= 0]
        more = f" and {len(names) - _NAMED_SHARDS} more" if len(names) > _NAMED_SHARDS else ""
        return f"{', '.join(names[:_NAMED_SHARDS])}{more} in {self.shards.folder}"

    def interrupt(self) -> None:
        """Have threads that wait for shards give up."""
        if self.remote:
            self.remote.close()

    def close(self) -> None:
        """Unmap all shards, once nothing reads any more."""
        self.interrupt()
        if self._readahead:
            self._readahead.close()
        self.shards.close()


class _Draws:
    """The ids of one rank's batches, drawn in blocks of steps and shared by threads."""

    def __init__(self, order: Order, logical_workers: range) -> None:
        self._order = order
        self._workers = logical_workers
        self._num_steps = max(1, _SAMPLES_DRAWN_AT_ONCE // order.plan.batch_size)
        self._epoch: Epoch | None = None
        self._blocks: OrderedDict[Position, NDArray[np.int64]] = OrderedDict()
        self._lock = threading.Lock()

    def at(self, position: Position) -> NDArray[np.int64]:
        """The ids of a batch, [k * b] int64: the microbatches of this rank one after the other."""
        first = position.step // self._num_steps * self._num_steps
        with self._lock:
            block = self._blocks.get(Position(position.epoch, first))
            if block is None:
                block = self._draw(position.epoch, first)
                self._blocks[Position(position.epoch, first)] = block
                if len(self._blocks) > _DRAWS_KEPT:
                    self._blocks.popitem(last=False)
        ids: NDArray[np.int64] = block[position.step - first]
        return ids

    def _draw(self, epoch: int, first: int) -> NDArray[np.int64]:
        if self._epoch is None or self._epoch.number != epoch:
            self._epoch = self._order.draw_epoch(epoch)
        num_steps = min(self._num_steps, self._order.num_steps - first)
        ids = self._epoch.batches(first, num_steps)[:, self._workers]
        return ids.reshape(num_steps, -1)
