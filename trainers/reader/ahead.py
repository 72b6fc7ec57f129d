"""Reading ahead: batches in order, while threads fill the slots of those to come.

Every slot is either being filled for one of the next positions, or holds the batch that is handed
out. So memory is bounded by construction, and what was read is handed out in order however threads
finish. A stall is an error that says what was waited for, not a process that hangs.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

from pipelines.core.errors import HeadraceError
from trainers.reader.slots import Microbatch, Slot
from trainers.reader.threads import Threads


class Position(NamedTuple):
    """Which batch."""

    epoch: int
    step: int


@dataclass(frozen=True, eq=False)
class Batch:
    """One rank's part of a global batch; valid until the next batch is asked for."""

    epoch: int
    step: int
    """Within the epoch, from 0."""
    microbatches: tuple[Microbatch, ...]
    """One for each logical worker of this rank, ascending."""


class Watch(NamedTuple):
    """When waiting for a batch is a stall."""

    timeout_s: float
    describe: Callable[[Position], HeadraceError | None]
    """What to tell of it; None: somebody else looks after this one, wait on."""


class ReadAhead:
    """An iterator over the batches at `positions`.

    Args:
        positions: which batches, in order.
        slots: at least one; the first is filled at once, so the second and later ones are what is
            read ahead.
        fill: reads the batch at a position into a slot; runs in `threads`.
        threads: where reading happens; not shut down here.
        watch: when waiting for a batch is a stall.
    """

    def __init__(
        self,
        positions: Iterator[Position],
        slots: Sequence[Slot],
        fill: Callable[[Slot, Position], None],
        threads: Threads,
        watch: Watch,
    ) -> None:
        self._positions = positions
        self._fill = fill
        self._threads = threads
        self._watch = watch
        self._pending: deque[tuple[Position, Slot, Future[None]]] = deque()
        self._handed_out: Slot | None = None
        self._stopped = False
        for slot in slots:
            self._submit(slot)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        """The next batch; the one before is overwritten from here on.

        Raises:
            Exception: what `fill` raised for this batch.
            HeadraceError: it has not come in time.
            RuntimeError: the iteration was stopped from outside.
        """
        if self._stopped:
            raise RuntimeError(
                "this iteration was ended by `close`, or by another call of `batches`"
            )
        if self._handed_out:
            self._handed_out.take_back()
            self._submit(self._handed_out)
            self._handed_out = None
        if not self._pending:
            raise StopIteration
        position, slot, filled = self._pending.popleft()
        self._wait_for(position, filled)
        slot.hand_out()
        self._handed_out = slot
        return Batch(position.epoch, position.step, slot.microbatches)

    def stop(self) -> None:
        """Give up what is not read yet and wait for what is being read; then the slots are free.

        Raises:
            HeadraceError: a thread hangs, so that they are not.
        """
        self._stopped = True
        running = {filled: place for place, _, filled in self._pending if not filled.cancel()}
        self._pending.clear()
        self._handed_out = None
        while stuck := wait(running, self._watch.timeout_s).not_done:
            error = self._watch.describe(running[next(iter(stuck))])
            if error:
                raise error

    def _wait_for(self, position: Position, filled: "Future[None]") -> None:
        while not wait([filled], self._watch.timeout_s).done:
            error = self._watch.describe(position)
            if error:
                self._pending.clear()  # Or `stop` would wait for it once more.
                raise error
        filled.result()

    def _submit(self, slot: Slot) -> None:
        position = next(self._positions, None)
        if position is not None:
            filled = self._threads.submit(partial(self._fill, slot, position))
            self._pending.append((position, slot, filled))
