"""Several datasets in one stream of batches, by weight.

    parts = [Part(Path("datasets/a/decoded"), 3), Part(Path("datasets/b/decoded"), 1)]
    with Mixture(parts, "train", plan, placement) as mixture:
        for batch in mixture.batches(mixture.start(), num_epochs=3):
            ...

Guarantees: every batch holds the same number of samples of each dataset, alike in each microbatch,
so what a batch is depends on neither ranks, threads nor prefetch. Each dataset is in its own order
and begins its next epoch when its last one ends, whenever that is; so a position is still one
integer, and seeking costs what it costs in one dataset.

The price: a share is a multiple of `num_logical_workers / batch_size`, the nearest to its weight;
`Mixture.shares` says what came of it. An epoch of the mixture is as many batches as all datasets
together fill.

Ids count on from one dataset to the next, in the order of the parts.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import torch

from pipelines.core.errors import HeadraceError
from trainers.reader.ahead import Batch, Position, ReadAhead, Watch
from trainers.reader.loader import HUNG_S, Placement
from trainers.reader.order import PADDING, Plan, State, check_version, logical_workers_of
from trainers.reader.slots import Slot
from trainers.reader.source import Source
from trainers.reader.threads import Threads


class Part(NamedTuple):
    """A decoded dataset, and how much of every batch comes from it."""

    source: Path | str
    weight: float


def num_places(weights: Sequence[float], plan: Plan) -> list[int]:
    """How many places of a batch each dataset has: by largest remainder, at least one a worker.

    Raises:
        HeadraceError: a weight is not positive, or a microbatch has too few places for all.
    """
    if not weights or min(weights) <= 0:
        raise HeadraceError("Weights must be positive", found=str(list(weights)))
    if len(weights) > plan.microbatch_size:
        raise HeadraceError(
            "A microbatch has no place for each dataset",
            expected=f"microbatches of at least {len(weights)} samples",
            found=f"{plan.microbatch_size}",
            fix="raise batch_size, or lower num_logical_workers, in params.yaml",
        )
    free = plan.microbatch_size - len(weights)
    exact = np.array(weights) / sum(weights) * plan.microbatch_size - 1
    wanted = np.maximum(exact, 0)
    wanted *= free / max(wanted.sum(), 1e-300)
    whole = np.floor(wanted).astype(int)
    # The parts that are furthest from what they want get what is left, the first of equal ones.
    order = np.argsort(-(wanted - whole), kind="stable")
    whole[order[: free - int(whole.sum())]] += 1
    return [int(1 + count) * plan.num_logical_workers for count in whole]


class Mixture:
    """Reads one split of several datasets of one shape and one list of labels; close it.

    Args:
        parts: the datasets and their weights.
        split: the same of each.
        plan: of the whole batch. A dataset fills its last batch of an epoch up from the beginning
            of that epoch (tail `wrap`), whatever the plan's tail.
        placement: see `Reader`.

    Raises:
        HeadraceError: as `Reader`; or the datasets do not fit each other.
    """

    def __init__(self, parts: Sequence[Part], split: str, plan: Plan, placement: Placement) -> None:
        self.plan = plan
        workers = logical_workers_of(placement.rank, placement.world_size, plan.num_logical_workers)
        self._places = num_places([part.weight for part in parts], plan)
        self.shares = tuple(places / plan.batch_size for places in self._places)
        """Of each dataset, in every batch."""
        num_slots = placement.prefetch_batches + 1
        self._sources: list[Source] = []
        try:
            for part, places in zip(parts, self._places, strict=True):
                own = dataclasses.replace(plan, batch_size=places, tail="wrap")
                self._sources.append(Source(part.source, split, own, workers, num_slots))
            _check_alike(parts, self._sources)
        except BaseException:
            self._close_sources()
            raise
        sizes = [source.order.num_samples for source in self._sources]
        self._first_ids = np.cumsum([0, *sizes])
        self.num_samples = sum(sizes)
        self.num_steps_per_epoch = max(1, self.num_samples // plan.batch_size)
        shape = self._sources[0].index.shape
        self._slots = [
            Slot(workers, plan.microbatch_size, shape, placement.device) for _ in range(num_slots)
        ]
        self._threads = Threads(placement.num_threads, "headrace-mixture")
        self._has_stalled = False
        self._watch = Watch(placement.stall_timeout_s, self._stalled)
        self._reading: ReadAhead | None = None

    @property
    def version(self) -> str:
        """Of all datasets and their shares together, 64 hexadecimal digits."""
        told = [
            f"{source.index.version} {places}\n"
            for source, places in zip(self._sources, self._places, strict=True)
        ]
        return hashlib.sha256("".join(told).encode()).hexdigest()

    def start(self) -> State:
        """The state before the first batch of the first epoch."""
        return State(self.version, self.plan.seed, 0, 0)

    def state_after(self, batch: Batch) -> State:
        """From where to continue once `batch` has been used."""
        epoch, step = divmod(self._count(batch.epoch, batch.step) + 1, self.num_steps_per_epoch)
        return State(self.version, self.plan.seed, epoch, step)

    def batches(self, state: State, *, num_epochs: int) -> Iterator[Batch]:
        """Batches from `state` to the end of epoch `num_epochs - 1`; see `Reader.batches`.

        Raises:
            HeadraceError: the state belongs to other data, other shares or another seed.
        """
        check_version(state, self.version)
        if state.seed != self.plan.seed:
            raise HeadraceError(
                "The position to continue from belongs to another plan",
                expected=f"seed {self.plan.seed}",
                found=f"seed {state.seed}",
                fix="continue with the params that the checkpoint was made with",
            )
        if self._reading:
            self._reading.stop()
        first = self._count(state.epoch, state.step)
        end = num_epochs * self.num_steps_per_epoch
        for source in self._sources:
            num_steps = source.order.num_steps
            source.start(*divmod(first, num_steps), -(-end // num_steps))
        positions = (
            Position(*divmod(step, self.num_steps_per_epoch)) for step in range(first, end)
        )
        self._reading = ReadAhead(positions, self._slots, self._fill, self._threads, self._watch)
        return self._reading

    def keys(self, ids: torch.Tensor) -> list[tuple[int, str]]:
        """The number of the dataset and the key of each sample id ([m] int64, no padding)."""
        numbers = np.searchsorted(self._first_ids, ids.numpy(), side="right") - 1
        return [
            (
                number,
                self._sources[number].shards.keys(np.array([one - self._first_ids[number]]))[0],
            )
            for number, one in zip(numbers.tolist(), ids.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Stop reading, join the threads, unmap the shards and let go of the buffers."""
        for source in self._sources:
            source.interrupt()
        try:
            if self._reading:
                self._reading.stop()
        finally:
            self._reading = None
            self._threads.close(HUNG_S if self._has_stalled else self._watch.timeout_s)
            self._close_sources()
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

    def _close_sources(self) -> None:
        for source in self._sources:
            source.close()

    def _count(self, epoch: int, step: int) -> int:
        return epoch * self.num_steps_per_epoch + step

    def _own(self, source: Source, position: Position) -> Position:
        """Where a dataset is in its own epochs when the mixture is at `position`."""
        return Position(*divmod(self._count(*position), source.order.num_steps))

    def _stalled(self, position: Position) -> HeadraceError | None:
        if any(source.is_waited_for for source in self._sources):
            return None
        self._has_stalled = True
        waiting = (source.describe(self._own(source, position)) for source in self._sources)
        return HeadraceError(
            f"A batch has not come for {self._watch.timeout_s:g} s",
            where=f"epoch {position.epoch}, step {position.step} of the mixture",
            found=f"waiting for {'; '.join(waiting)}",
            fix="look at the disk, or the network file system, that holds them",
        )

    def _fill(self, slot: Slot, position: Position) -> None:
        slot.before_fill()
        size = self.plan.microbatch_size
        begin = 0
        for number, source in enumerate(self._sources):
            at = self._own(source, position)
            source.move_on(at)
            num = source.order.plan.microbatch_size
            for row, ids in enumerate(source.ids_at(at).reshape(-1, num)):
                places = slice(row * size + begin, row * size + begin + num)
                source.shards.read(ids, slot.images[places], slot.labels[places])
                slot.ids[places] = ids + self._first_ids[number]
            begin += num
        np.not_equal(slot.ids, PADDING, out=slot.mask)
        slot.after_fill()


def _check_alike(parts: Sequence[Part], sources: Sequence[Source]) -> None:
    first = sources[0].index
    for part, source in zip(parts, sources, strict=True):
        ours, theirs = (first.shape, first.labels), (source.index.shape, source.index.labels)
        if ours != theirs:
            raise HeadraceError(
                "Datasets of another shape, or with other labels, cannot be mixed",
                where=str(part.source),
                expected=f"{ours} as in {parts[0].source}",
                found=str(theirs),
                fix="decode them with the same params, and give their cards the same labels",
            )
