"""Reading ahead: batches in order, while threads fill the slots of those to come.

Every slot is either being filled for one of the next positions, or holds the batch that is handed
out. So memory is bounded by construction, and what was read is handed out in order however threads
finish.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple, Self

from trainers.reader.slots import Microbatch, Slot


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


class ReadAhead:
    """An iterator over the batches at `positions`.

    Args:
        positions: which batches, in order.
        slots: at least one; the first is filled at once, so the second and later ones are what is
            read ahead.
        fill: reads the batch at a position into a slot; runs in `threads`.
        threads: where reading happens; not shut down here.
    """

    def __init__(
        self,
        positions: Iterator[Position],
        slots: Sequence[Slot],
        fill: Callable[[Slot, Position], None],
        threads: ThreadPoolExecutor,
    ) -> None:
        self._positions = positions
        self._fill = fill
        self._threads = threads
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
        filled.result()
        slot.hand_out()
        self._handed_out = slot
        return Batch(position.epoch, position.step, slot.microbatches)

    def stop(self) -> None:
        """Give up what is not read yet and wait for what is being read; then the slots are free."""
        self._stopped = True
        wait([filled for _, _, filled in self._pending if not filled.cancel()])
        self._pending.clear()
        self._handed_out = None

    def _submit(self, slot: Slot) -> None:
        position = next(self._positions, None)
        if position is not None:
            self._pending.append((position, slot, self._threads.submit(self._fill, slot, position)))
