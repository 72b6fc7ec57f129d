"""Shards behind a URL: fetched into the node's cache by threads that know what comes.

At any moment the shards that the batches in flight are read from, and the next ones in the order,
are held in the cache: fetched or being fetched, and locked against removal. Nothing is fetched
further ahead, so readers that share a cache cannot drive out what another one is about to need, and
as the sum of what they hold fits under the cap, none waits for another.

A fault is raised where its shard is opened, never where it was merely fetched ahead.
"""

import math
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pipelines.core.cluster import Machine, machine
from pipelines.core.errors import HeadraceError
from pipelines.core.storage import state_folder
from trainers.reader.cache import Blob, Cache, Closed
from trainers.reader.fetch import Fetcher, Patience
from trainers.reader.future import Future, View, max_shards_at_once
from trainers.reader.index import Index, SplitIndex
from trainers.reader.order import Order

NUM_THREADS = 4
_STALL_S = 480.0  # Without a piece of any shard: beyond all attempts at one.
_LOOK_S = 5.0
_JOIN_S = 30.0  # A thread that waits for a process that is stopped must not hold up the end.
_GIB = 1 << 30
_OPENED_BESIDES = 1  # A shard that is opened out of turn, to look up keys or single images.


def cache_folder(node: Machine) -> Path:
    """Where this machine keeps shards of buckets."""
    if node.cache_folder is None:
        return state_folder() / "shards"
    return Path(node.cache_folder).expanduser()


def open_remote(index: Index, order: Order, num_batches: int) -> "RemoteShards | None":
    """What fetches the shards of an order for a reader; None: they are in a folder already."""
    if index.url is None:
        return None
    return RemoteShards(index.url, index.split(order.split), order, num_batches, machine())


class RemoteShards:
    """The shards of one split of one reader. Safe to use from threads; close it.

    Args:
        url: of the folder of the index.
        split, order: what is read, and in which order.
        num_batches: how many consecutive batches may be in flight at a time.
        node: says where the cache is, and how large it may grow.
        patience: with the bucket.

    Raises:
        HeadraceError: the cache is too small for what is read at a time; no driver for the URL.
    """

    def __init__(
        self,
        url: str,
        split: SplitIndex,
        order: Order,
        num_batches: int,
        node: Machine,
        patience: Patience | None = None,
    ) -> None:
        self._split = split
        self._order = order
        self._batches = num_batches
        self._patience = patience or Patience()
        # Ranks that train together read the same, one batch and what is in flight apart.
        num_current = max_shards_at_once(order, 2 * num_batches)
        self._num_ahead = max(order.plan.window_shards or 1, NUM_THREADS)
        self.num_held = min(num_current + self._num_ahead, len(split.names)) + _OPENED_BESIDES
        """The most shards that are held at a time."""
        self._closing = threading.Event()
        self._fetcher = Fetcher(url, self._patience, self._closing)
        limit = int(node.cache_max_gib * _GIB)
        self.cache = Cache(cache_folder(node), limit, self._closing)
        self._registered = self.cache.register(self._num_bytes_held(), self._group())
        self._numbers = {str(name): number for number, name in enumerate(split.digests)}
        self._future: Future | None = None
        self._first_step = 0
        self._view = View([], [], np.full(len(split.names), np.inf), 0, 0, 0)
        self._opened_at = Path(self._registered.name).stat().st_mtime
        self._changed = threading.Condition()
        self._extra: list[int] = []  # asked for and in no view
        self._busy: set[int] = set()
        self._ready: dict[int, BinaryIO] = {}
        self._faults: dict[int, BaseException] = {}
        self._taken: set[int] = set()
        self._num_waiting = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"headrace-fetch-{number}", daemon=True)
            for number in range(NUM_THREADS)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, epoch: int, step: int, num_epochs: int) -> None:
        """What is needed now begins with this batch and ends with epoch `num_epochs - 1`."""
        with self._changed:
            self._future = Future(self._order, num_epochs)
            self._first_step = epoch * self._order.num_steps + step
            self._view = self._view._replace(leaves=-math.inf)

    def move_on(self, epoch: int, step: int) -> list[int]:
        """Say that a batch is being read now; later batches may be, too.

        Returns:
            The shards that were opened and are no longer needed: they are to be closed.
        """
        end_step = epoch * self._order.num_steps + step + 1
        begin_step = max(self._first_step, end_step - self._batches)
        begin, end = (edge * self._order.plan.batch_size for edge in (begin_step, end_step))
        with self._changed:
            assert self._future is not None, "started"
            if begin >= self._view.leaves or end > self._view.enters:
                self._view = self._future.view(begin, end, self._num_ahead)
                wanted = {*self._view.current, *self._view.ahead}
                for number in [number for number in self._ready if number not in wanted]:
                    self._ready.pop(number).close()
                self._changed.notify_all()
        return self.unneeded()

    def unneeded(self) -> list[int]:
        """The shards that were opened and are no longer needed."""
        with self._changed:
            found = self._taken - {*self._view.current, *self._view.ahead}
            self._taken -= found
            return list(found)

    def fetch(self, numbers: list[int]) -> None:
        """Wait until these shards can be opened without waiting.

        Raises:
            HeadraceError: a shard cannot be fetched.
            RuntimeError: closed meanwhile.
        """
        with self._changed:
            for number in numbers:
                if number not in self._taken:
                    self._wait_for(number)

    def open(self, number: int) -> BinaryIO:
        """A shard's file; it stays in the cache until this and all mappings of it are closed.

        Raises:
            HeadraceError: it cannot be fetched.
            RuntimeError: closed meanwhile.
        """
        with self._changed:
            self._wait_for(number)
            self._taken.add(number)
            return self._ready.pop(number)

    def close(self) -> None:
        """Give up all requests, join the threads and let go of all files."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_S)
        for file in self._ready.values():
            file.close()
        self._ready.clear()
        self._registered.close()

    @property
    def is_waited_for(self) -> bool:
        """Whether a thread waits for a shard at the moment."""
        return self._num_waiting > 0

    def _wait_for(self, number: int) -> None:
        self._num_waiting += 1
        try:
            self._wait_until_ready(number)
        finally:
            self._num_waiting -= 1

    def _wait_until_ready(self, number: int) -> None:
        started = time.monotonic()
        while number not in self._ready:
            if self._closing.is_set():
                raise RuntimeError("the reader was closed while a shard was waited for")
            if number in self._faults:
                raise self._faults.pop(number)
            if number not in self._extra:
                self._extra.append(number)
                self._changed.notify_all()
            self._changed.wait(_LOOK_S)
            if time.monotonic() - max(started, self._last_piece(number)) > _STALL_S:
                raise self._stalled(number)
        if number in self._extra:
            self._extra.remove(number)

    def _last_piece(self, number: int) -> float:
        """When a piece of any shard came last, or one of this came for another process."""
        age_s = self.cache.seconds_since_written(str(self._split.digests[number]))
        return max(self._fetcher.last_piece, time.monotonic() - age_s)

    def _stalled(self, number: int) -> HeadraceError:
        digest = str(self._split.digests[number])
        return HeadraceError(
            f"A shard has not come for {_STALL_S / 60:.0f} minutes",
            where=f"{self._fetcher.url}/{self._split.names[number]}",
            found=f"waited for tmp-{digest} in {self.cache.folder}, or for room beside what is"
            " being read",
            fix="look for a process that is stopped and uses the same cache (`fuser -v` the file)",
        )

    def _work(self) -> None:
        """Fetch what is wanted next, until closed."""
        while (number := self._next()) is not None:
            fault: BaseException | None = None
            file: BinaryIO | None = None
            try:
                file = self._get(number)
            except Closed:
                return
            except BaseException as error:  # noqa: BLE001 - raised where the shard is opened
                fault = error
            with self._changed:
                self._busy.discard(number)
                if file is not None and self._is_wanted(number):
                    self._ready[number] = file
                elif file is not None:
                    file.close()
                elif fault is not None:
                    self._faults[number] = fault
                self._changed.notify_all()

    def _next(self) -> int | None:
        """The shard to fetch now; waits for one to be wanted."""
        with self._changed:
            while not self._closing.is_set():
                for number in (*self._extra, *self._view.current, *self._view.ahead):
                    if not self._is_in_hand(number):
                        self._busy.add(number)
                        return number
                self._changed.wait()
        return None

    def _is_wanted(self, number: int) -> bool:
        return any(
            number in numbers for numbers in (self._extra, self._view.current, self._view.ahead)
        )

    def _is_in_hand(self, number: int) -> bool:
        is_waited_for = number in self._extra
        is_known = number in self._busy or number in self._ready or number in self._faults
        return is_known or (number in self._taken and not is_waited_for)

    def _get(self, number: int) -> BinaryIO:
        name, digest = str(self._split.names[number]), str(self._split.digests[number])
        blob = Blob(digest, int(self._split.num_bytes[number]))
        return self.cache.get(
            blob, lambda descriptor: self._fetcher.download(name, blob, descriptor), self._rank
        )

    def _rank(self, digest: str, last_use_s: float) -> float:
        """When a shard in the cache is needed next, as far as this reader knows."""
        view, number = self._view, self._numbers.get(digest)
        if number is not None:
            return float(view.next_use[number])
        # What another open reader used, such as that of the split `val`, will be wanted again once
        # an epoch; what none did since this one was opened, may be of an old version.
        return view.end_of_epoch if last_use_s >= self._opened_at else math.inf

    def _num_bytes_held(self) -> int:
        return int(np.sort(self._split.num_bytes)[::-1][: self.num_held].sum())

    def _group(self) -> str:
        """Ranks of one training read in step, those of an evaluation each at its own pace."""
        plan = self._order.plan
        process = os.getpid() if plan.window_shards is None else os.getppid()
        return f"{self._order.version} {self._order.split} {plan} {process}"
