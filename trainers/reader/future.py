"""Which shards are needed next: read off the order, which is a pure function.

A window's shards are needed from the batch that holds its first sample to the batch that holds its
last. Time is counted in *places*: samples of the run's global batches, over all epochs. So what is
being read, what comes next, and when a shard is needed again are all known beforehand, on every
rank alike.

Costs O(shards) memory, and a few milliseconds for 10^5 shards whenever reading enters or leaves a
window.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainers.reader.order import Order


class Needs(NamedTuple):
    """The shards of some epochs in the order in which they are needed, window by window."""

    shards: NDArray[np.int64]  # [n] shard numbers, in storage order of the split
    begins: NDArray[np.int64]  # [n] the place of the first sample of the shard's window
    ends: NDArray[np.int64]  # [n] the place after its last


class View(NamedTuple):
    """The future as seen from some batches."""

    current: list[int]
    """Shards that these batches are read from."""
    ahead: list[int]
    """Those needed next, soonest first."""
    next_use: NDArray[np.float64]
    """[S] the place at which each shard is needed next; inf: not in this epoch or the next."""
    end_of_epoch: int
    """The place at which the epoch of the first of the batches ends."""
    leaves: float
    """The place from which on a shard of `current` is no longer needed."""
    enters: float
    """The place from which on a shard is needed that is not in `current`."""


class Future:
    """What is needed until the end of epoch `num_epochs - 1`; shards without rows are not known."""

    def __init__(self, order: Order, num_epochs: int) -> None:
        self._order = order
        self._num_epochs = num_epochs
        self._epoch_places = order.num_steps * order.plan.batch_size
        self._first_ids = np.cumsum(order.num_rows) - order.num_rows
        self._epochs: dict[int, Needs] = {}

    def view(self, begin: int, end: int, num_ahead: int) -> View:
        """The future from the batches that hold the places `begin` to `end - 1`.

        Args:
            begin: the first place.
            end: the place after the last.
            num_ahead: how many shards beyond those of the batches.
        """
        first = begin // self._epoch_places
        last = (end - 1) // self._epoch_places
        needs = self._needs(first, min(last + 2, self._num_epochs))
        is_left = needs.ends <= begin
        is_current = ~is_left & (needs.begins < end)
        is_later = needs.begins >= end
        current = list(dict.fromkeys(needs.shards[is_current].tolist()))
        known = set(current)
        ahead = dict.fromkeys(shard for shard in needs.shards[is_later].tolist())
        ahead_list = [shard for shard in ahead if shard not in known][:num_ahead]
        next_use = np.full(len(self._order.num_rows), np.inf)
        # Of several assignments to one place the last one stays: the soonest, in reverse.
        next_use[needs.shards[~is_left][::-1]] = needs.begins[~is_left][::-1]
        return View(
            current,
            ahead_list,
            next_use,
            (first + 1) * self._epoch_places,
            float(needs.ends[is_current].min(initial=np.iinfo(np.int64).max)),
            float(needs.begins[is_later].min(initial=np.iinfo(np.int64).max)),
        )

    def _needs(self, first: int, end: int) -> Needs:
        self._epochs = {
            epoch: self._epochs.get(epoch) or self._draw(epoch) for epoch in range(first, end)
        }
        if not self._epochs:
            nothing = np.empty(0, np.int64)
            return Needs(nothing, nothing, nothing)
        return Needs(*(np.concatenate(parts) for parts in zip(*self._epochs.values(), strict=True)))

    def _draw(self, epoch: int) -> Needs:
        shards, begins, ends = self._windows(epoch)
        # The tail `wrap` goes through the epoch's beginning once more, or more than once; the tail
        # `drop` never gets to the windows that begin in it.
        laps = np.arange(-(-self._epoch_places // self._order.num_samples))
        offsets = np.repeat(laps * self._order.num_samples, len(shards))
        begins, ends = np.tile(begins, len(laps)) + offsets, np.tile(ends, len(laps)) + offsets
        used = begins < self._epoch_places
        start = epoch * self._epoch_places
        return Needs(
            np.tile(shards, len(laps))[used],
            begins[used] + start,
            np.minimum(ends[used], self._epoch_places) + start,
        )

    def _windows(self, epoch: int) -> Needs:
        windows = self._order.draw_epoch(epoch).windows
        if windows is None:
            num_shards = len(self._first_ids)
            ends = self._first_ids + self._order.num_rows
            return Needs(np.arange(num_shards), self._first_ids, ends)
        last_ids = windows.shard_ends - 1 + windows.offsets
        counts = np.diff(windows.shard_edges)
        return Needs(
            np.searchsorted(self._first_ids, last_ids, side="right") - 1,
            np.repeat(windows.edges[:-1], counts),
            np.repeat(windows.edges[1:], counts),
        )


def max_shards_at_once(order: Order, num_batches: int) -> int:
    """The most shards that `num_batches` consecutive batches of any epoch can be read from."""
    num_shards = len(order.num_rows)
    rows = np.sort(order.num_rows[order.num_rows > 0])
    num_windows = -(-num_shards // (order.plan.window_shards or 1))
    # The smallest window that can be: the fewest shards, each as small as any.
    least = max(1, int(rows[: max(1, num_shards // num_windows)].sum()))
    places = num_batches * order.plan.batch_size
    # Where an epoch, or its wrapped tail, begins or ends, a window may be cut short.
    num_cuts = 2 * (places // min(order.num_samples, places) + 1)
    num_at_once = (-(-places // least) + 1 + num_cuts) * -(-num_shards // num_windows)
    return min(num_shards, num_at_once)
