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
from trainers.reader.order import Plan, State, check_version, logical_workers_of
from trainers.reader.slots import Slot
from trainers.reader.source import Source
from trainers.reader.substitute import Report
from trainers.reader.threads import Threads

HUNG_S = 0.5  # Enough for the threads that do not hang.


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
        self.logical_workers = logical_workers_of(
            placement.rank, placement.world_size, plan.num_logical_workers
        )
        num_slots = placement.prefetch_batches + 1
        self._source = Source(source, split, plan, self.logical_workers, num_slots, on_bad_sample)
        self.index, self.order = self._source.index, self._source.order
        self._slots = [
            Slot(self.logical_workers, plan.microbatch_size, self.index.shape, placement.device)
            for _ in range(num_slots)
        ]
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
        self._source.start(state.epoch, state.step, end)
        self._reading = ReadAhead(
            self._positions(state, end), self._slots, self._fill, self._threads, self._watch
        )
        return self._reading

    def keys(self, ids: torch.Tensor) -> list[str]:
        """The keys of sample ids ([m] int64, no padding), in the same order."""
        return self._source.shards.keys(ids.cpu().numpy())

    def images(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images of a few samples ([m] int64, no padding), [m, H, W, C] uint8, read anew."""
        return self._source.images(ids)

    def close(self) -> None:
        """Stop reading, join the threads, unmap the shards and let go of the buffers."""
        self._source.interrupt()
        try:
            if self._reading:
                self._reading.stop()
        finally:
            self._reading = None
            self._threads.close(HUNG_S if self._has_stalled else self._watch.timeout_s)
            self._source.close()
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
        if self._source.is_waited_for:
            return None
        self._has_stalled = True
        return HeadraceError(
            f"A batch has not come for {self._watch.timeout_s:g} s",
            where=f"split {self.order.split}, epoch {position.epoch}, step {position.step}",
            found=f"waiting for {self._source.describe(position)}",
            fix="look at the disk, or the network file system, that holds them",
        )

    def _fill(self, slot: Slot, position: Position) -> None:
        slot.before_fill()
        slot.ids[:] = self._source.ids_at(position)
        np.greater_equal(slot.ids, 0, out=slot.mask)
        self._source.move_on(position)
        self._source.shards.read(slot.ids, slot.images, slot.labels)
        slot.after_fill()
