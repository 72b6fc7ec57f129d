"""The reader: batches of a decoded dataset in the order of `order`, read ahead by threads.

    plan = training(seed=1, batch_size=256, num_logical_workers=8, window_shards=16, tail="drop")
    with Reader(decoded, "train", plan, placement) as reader:
        for batch in reader.batches(reader.start(), num_epochs=3):
            for microbatch in batch.microbatches:
                ...
            state = reader.state_after(batch)

Guarantees: what a batch holds depends on the plan and the data alone, never on ranks, threads, or
how much is read ahead. Damage is found before a sample is handed out. An error in a thread is
raised where the batch is asked for, and a stall is an error. After `close`, no thread, file or
buffer of the reader is left.

**A batch is valid until the next one is asked for**: its tensors are views of a fixed ring of
buffers. Clone what must live longer.

Costs: one copy from the page cache into the batch; `prefetch_batches + 1` buffers of a rank's
    batch.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.core.errors import HeadraceError
from trainers.reader.ahead import Batch, Position, ReadAhead, Watch
from trainers.reader.index import open_index
from trainers.reader.order import Epoch, Order, Plan, State, check_version, logical_workers_of
from trainers.reader.remote import open_remote
from trainers.reader.shards import Shards
from trainers.reader.slots import Slot
from trainers.reader.substitute import Report
from trainers.reader.threads import Threads

# Drawing the order in single batches costs three times as much a sample.
_SAMPLES_DRAWN_AT_ONCE = 16_384
_DRAWS_KEPT = 4  # More than threads can be apart.
_NAMED_SHARDS = 3  # In an error.
_HUNG_S = 0.5  # Enough for the threads that do not hang.


@dataclass(frozen=True)
class Placement:
    """Where and how wide a reader runs: machine configuration, which never changes what is read."""

    rank: int
    world_size: int
    num_threads: int
    """Threads that read."""
    prefetch_batches: int
    """Batches read ahead of the one that is handed out; 1 or more."""
    device: torch.device
    """Where batches are handed out."""
    stall_timeout_s: float = 300.0
    """How long a batch may take to come before that is an error."""


class Reader:
    """Reads one split of a decoded dataset. Used from one thread; close it, or use `with`.

    Args:
        source: `datasets/<name>/decoded`, or the URL of such a folder (see `remote`).
        split: `train`, `val` or `test`.
        plan: what to read, in which order.
        placement: which part of it this process reads, and how.
        on_bad_sample: is told of each damaged sample, which `substitute` then replaces; None:
            damage is an error.

    Raises:
        HeadraceError: data are missing, damaged or less than one batch, or plan and placement
            do not fit each other.
    """

    def __init__(
        self,
        source: Path | str,
        split: str,
        plan: Plan,
        placement: Placement,
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
        self.logical_workers = logical_workers_of(
            placement.rank, placement.world_size, plan.num_logical_workers
        )
        self._draws = _Draws(self.order, self.logical_workers)
        self._slots = [
            Slot(self.logical_workers, plan.microbatch_size, self.index.shape, placement.device)
            for _ in range(placement.prefetch_batches + 1)
        ]
        self._remote = open_remote(self.index, self.order, placement.prefetch_batches + 1)
        num_at_once = self._remote.num_held if self._remote else plan.window_shards or 1
        try:
            self._shards = Shards(self.index, split, num_at_once, self._remote, on_bad_sample)
        except BaseException:
            if self._remote:
                self._remote.close()
            raise
        self._threads = Threads(placement.num_threads, "headrace-reader")
        self._has_stalled = False
        self._watch = Watch(placement.stall_timeout_s, self._stalled)
        self._reading: ReadAhead | None = None

    @property
    def version(self) -> str:
        """The dataset version."""
        return self.index.version

    @property
    def num_samples(self) -> int:
        """Samples of the split, over all ranks."""
        return self.order.num_samples

    @property
    def num_steps_per_epoch(self) -> int:
        """Batches of an epoch: the same for every rank and every epoch."""
        return self.order.num_steps

    def start(self) -> State:
        """The state before the first batch of the first epoch."""
        return State(self.version, self.order.plan.seed, 0, 0)

    def state_after(self, batch: Batch) -> State:
        """From where to continue once `batch` has been used."""
        return self.order.next_state(batch.epoch, batch.step)

    def batches(self, state: State, *, num_epochs: int | None = None) -> Iterator[Batch]:
        """Batches from `state` on. Reading starts at once, and runs across epochs without a gap.

        Ends an earlier iteration of this reader, whose batches are overwritten.

        Args:
            state: where to start.
            num_epochs: end with epoch `num_epochs - 1`; None: with the epoch of `state`.

        Raises:
            HeadraceError: the state belongs to other data or another plan. While iterating: a
                sample or shard is damaged or missing.
        """
        self._check(state)
        if self._has_stalled:
            raise RuntimeError("a thread of this reader hangs: close it and open another")
        if self._reading:
            self._reading.stop()
        end = state.epoch + 1 if num_epochs is None else num_epochs
        if self._remote:
            self._remote.start(state.epoch, state.step, end)
        self._reading = ReadAhead(
            self._positions(state, end), self._slots, self._fill, self._threads, self._watch
        )
        return self._reading

    def keys(self, ids: torch.Tensor) -> list[str]:
        """The keys of sample ids ([m] int64, no padding), in the same order."""
        return self._shards.keys(ids.cpu().numpy())

    def images(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images of a few samples ([m] int64, no padding), [m, H, W, C] uint8, read anew."""
        images = np.empty((len(ids), *self.index.shape), np.uint8)
        for place in range(len(ids)):
            one = slice(place, place + 1)
            self._shards.read(ids[one], images[one].reshape(1, -1), np.empty(1, np.int64))
            self._shards.unmap_unneeded()
        return images

    def close(self) -> None:
        """Stop reading, join the threads, unmap the shards and let go of the buffers."""
        if self._remote:
            self._remote.close()
        try:
            if self._reading:
                self._reading.stop()
        finally:
            self._reading = None
            self._threads.close(_HUNG_S if self._has_stalled else self._watch.timeout_s)
            self._shards.close()
            self._slots.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check(self, state: State) -> None:
        check_version(state, self.version)
        seed, num_steps = self.order.plan.seed, self.num_steps_per_epoch
        if state.seed != seed or not 0 <= state.step < num_steps or state.epoch < 0:
            raise HeadraceError(
                "The position to continue from belongs to another plan",
                expected=f"seed {seed}, step within 0..{num_steps - 1}",
                found=f"seed {state.seed}, step {state.step} of epoch {state.epoch}",
                fix="continue with the params that the checkpoint was made with",
            )

    def _positions(self, state: State, num_epochs: int) -> Iterator[Position]:
        first = state.step
        for epoch in range(state.epoch, num_epochs):
            for step in range(first, self.num_steps_per_epoch):
                yield Position(epoch, step)
            first = 0

    def _stalled(self, position: Position) -> HeadraceError | None:
        """What to tell of a batch that does not come."""
        if self._remote and self._remote.is_waited_for:
            return None  # It has a watch of its own, which knows what comes through.
        self._has_stalled = True
        numbers = np.searchsorted(
            self._shards.split.first_ids, self._draws.at(position), side="right"
        )
        names = [self._shards.split.names[int(number) - 1] for number in np.unique(numbers)]
        more = f" and {len(names) - _NAMED_SHARDS} more" if len(names) > _NAMED_SHARDS else ""
        return HeadraceError(
            f"A batch has not come for {self._watch.timeout_s:g} s",
            where=f"split {self.order.split}, epoch {position.epoch}, step {position.step}",
            found=f"waiting for {', '.join(map(str, names[:_NAMED_SHARDS]))}{more}"
            f" in {self._shards.folder}",
            fix="look at the disk, or the network file system, that holds them",
        )

    def _fill(self, slot: Slot, position: Position) -> None:
        slot.before_fill()
        slot.ids[:] = self._draws.at(position)
        np.greater_equal(slot.ids, 0, out=slot.mask)
        self._shards.move_on(*position)
        self._shards.read(slot.ids, slot.images, slot.labels)
        slot.after_fill()


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
