"""Readahead of a local disk from the known future: the next window's shards, before they are read.

Samples of a window are read in a random order, so the kernel's own readahead brings the wrong
pages; but all of a window is needed, and which comes next is known. The kernel is asked for those
shards (posix_fadvise(2), WILLNEED) when a window is entered; what is in the page cache already
costs nothing. It may drop them where memory is short: this changes only how soon a page is there.
"""

import contextlib
import os
from functools import partial

from trainers.reader.future import Future
from trainers.reader.index import SplitIndex
from trainers.reader.order import Order
from trainers.reader.threads import Threads

_CLOSE_S = 5.0


class Readahead:
    """For the shards of a split in a local folder. Used from threads under a lock; close it."""

    def __init__(self, split: SplitIndex, order: Order) -> None:
        self._split = split
        self._order = order
        self._num_ahead = order.plan.window_shards or 1
        self._future: Future | None = None
        self._enters = -1.0
        self._asked: set[int] = set()
        # A thread of its own: a disk with a full queue makes who asks wait.
        self._threads = Threads(1, "headrace-readahead")

    def start(self, num_epochs: int) -> None:
        """Reading ends with epoch `num_epochs - 1`."""
        self._future = Future(self._order, num_epochs)
        self._enters = -1.0
        self._asked = set()

    def move_on(self, epoch: int, step: int) -> None:
        """Say that a batch is about to be read."""
        assert self._future is not None, "started"
        begin = (epoch * self._order.num_steps + step) * self._order.plan.batch_size
        end = begin + self._order.plan.batch_size
        if end <= self._enters:
            return
        view = self._future.view(begin, end, self._num_ahead)
        self._enters = view.enters
        wanted = [*view.current, *view.ahead]
        for number in wanted:
            if number not in self._asked:
                self._threads.submit(partial(self._ask, number))
        self._asked = set(wanted)

    def close(self) -> None:
        """End the thread."""
        self._threads.close(_CLOSE_S)

    def _ask(self, number: int) -> None:
        # A shard that is missing is told where it is read.
        with contextlib.suppress(OSError), self._split.path(number).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
