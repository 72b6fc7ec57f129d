"""A file of a bucket into a local one: in pieces, by fsspec, with deadlines, retries and a hedge.

Each piece is one request with a deadline. A request that takes much longer than those before it
gets a second one beside it, and the first of both to succeed counts. A piece that fails is asked
for again, a bounded number of times with growing and random pauses. At the end the SHA-256 of the
whole must be the expected one; else all of it is fetched again.

Requests run on fsspec's own event loop, so that they can be given up at any moment.
"""

import asyncio
import concurrent.futures
import functools
import hashlib
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tenacity
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

from pipelines.core.errors import HeadraceError
from pipelines.core.sources.drivers import open_url
from pipelines.core.sources.remote import may_pass
from trainers.reader.cache import Blob, Closed

_POLL_S = 0.1
_NUM_DURATIONS = 32
_FEW_DURATIONS = 8


@dataclass(frozen=True)
class Patience:
    """When to ask again, and when to give up."""

    piece_bytes: int = 4 << 20
    deadline_s: float = 60.0
    """For a piece, in all."""
    max_attempts: int = 6
    """At a piece."""
    max_rounds: int = 3
    """At a whole file whose bytes turn out not to be the expected ones."""
    first_pause_s: float = 0.5
    """The most that is waited before the second attempt; it doubles from one to the next."""
    longest_pause_s: float = 20.0
    hedge_factor: float = 4.0
    """A request that takes so many times the median of those before gets a second one beside it."""
    least_hedge_s: float = 1.0
    """But not before."""


class _WrongBytesError(Exception):
    """All came through, and it is something else."""


class Fetcher:
    """Fetches files of one folder; safe to use from threads, but not after a fork.

    Args:
        url: of the folder, for fsspec.
        patience: when to ask again, and when to give up.
        closing: ends all requests when it is set.

    Raises:
        HeadraceError: an unknown protocol, a missing driver, or one that refuses the URL.
    """

    def __init__(self, url: str, patience: Patience, closing: threading.Event) -> None:
        self.url = url.rstrip("/")
        self._patience = patience
        self._closing = closing
        filesystem, self._path = open_url(self.url, patience.deadline_s)
        is_async = filesystem.async_impl and not filesystem.asynchronous
        self._filesystem: Any = (
            filesystem if is_async else AsyncFileSystemWrapper(filesystem, asynchronous=False)
        )
        self._durations: deque[float] = deque(maxlen=_NUM_DURATIONS)
        self._process = os.getpid()
        self.last_piece = time.monotonic()
        """When a request was last answered."""

    def read(self, name: str) -> bytes:
        """All bytes of a small file.

        Raises:
            HeadraceError: it cannot be read; names file, attempt and cause.
            FileNotFoundError: it is not there.
            Closed: `closing` was set.
        """
        return self._persist(name, "", lambda: self._ask(name, None, None))

    def download(self, name: str, blob: Blob, descriptor: int) -> None:
        """Write a file's bytes to `descriptor` from its beginning, and verify them.

        Raises:
            HeadraceError: it cannot be read to its end, or is not what is expected.
            Closed: `closing` was set.
        """
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._patience.max_rounds),
            retry=tenacity.retry_if_exception_type(_WrongBytesError),
            reraise=True,
        )
        try:
            retrying(self._download, name, blob, descriptor)
        except _WrongBytesError as error:
            raise HeadraceError(
                "A shard in the bucket is not the one that the index names; it was fetched"
                f" {self._patience.max_rounds} times",
                where=f"{self.url}/{name}",
                expected=f"SHA-256 {blob.sha256}",
                found=str(error),
                fix="copy decoded/ to the bucket once more: shards first, index.arrow last",
            ) from None
        except FileNotFoundError:
            raise HeadraceError(
                "A shard that the index names is not in the bucket",
                where=f"{self.url}/{name}",
                fix="copy decoded/ to the bucket once more: shards first, index.arrow last",
            ) from None

    def _download(self, name: str, blob: Blob, descriptor: int) -> None:
        digest = hashlib.sha256()
        position = 0
        for piece in self._pieces(name, blob.num_bytes):
            position += os.pwrite(descriptor, piece, position)
            digest.update(piece)
        if digest.hexdigest() != blob.sha256:
            raise _WrongBytesError(f"SHA-256 {digest.hexdigest()}")

    def _pieces(self, name: str, num_bytes: int) -> Iterator[bytes]:
        start = 0
        while start < num_bytes:
            end = min(start + self._patience.piece_bytes, num_bytes)
            where = f"bytes {start:,} to {end:,} of {num_bytes:,}: "
            piece = self._persist(
                name, where, functools.partial(self._piece, name, start, end, num_bytes)
            )
            yield piece
            start += len(piece)

    def _piece(self, name: str, start: int, end: int, num_bytes: int) -> bytes:
        data = self._ask(name, start, end)
        if len(data) == num_bytes:
            return data[start:]  # A server that knows no ranges sends everything.
        if len(data) != end - start:
            raise ConnectionError(f"{len(data):,} bytes came instead of {end - start:,}")
        return data

    def _persist(self, name: str, part: str, function: Callable[[], bytes]) -> bytes:
        """Call until it succeeds; a fault that does not pass is told in words."""
        patience = self._patience
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(patience.max_attempts),
            wait=tenacity.wait_random_exponential(
                multiplier=patience.first_pause_s, max=patience.longest_pause_s
            ),
            retry=tenacity.retry_if_exception(_is_worth_another),
            sleep=self._pause,
            reraise=True,
        )
        try:
            return retrying(function)
        except (Closed, FileNotFoundError):
            raise
        except Exception as error:  # What the drivers raise is theirs to choose.
            attempt = retrying.statistics["attempt_number"]
            cause = f"{type(error).__name__}: {error}".rstrip(": ")
            raise HeadraceError(
                "A file of the dataset cannot be fetched",
                where=f"{self.url}/{name}",
                found=f"attempt {attempt} of {patience.max_attempts}: {part}{cause}",
                fix="run the command again once the store answers: what is cached stays",
            ) from error

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise Closed

    def _ask(self, name: str, start: int | None, end: int | None) -> bytes:
        """One request, with a deadline and perhaps a second one beside it."""
        if os.getpid() != self._process:
            raise RuntimeError("a reader of a bucket does not survive a fork: open it afterwards")
        path = f"{self._path.rstrip('/')}/{name}"
        started = time.monotonic()
        future = asyncio.run_coroutine_threadsafe(
            self._hedged(path, start, end), self._filesystem.loop
        )
        while not future.done():
            if self._closing.is_set():
                future.cancel()
                raise Closed
            concurrent.futures.wait([future], timeout=_POLL_S)
        data = future.result()
        self.last_piece = time.monotonic()
        self._durations.append(self.last_piece - started)
        return data

    async def _hedged(self, path: str, start: int | None, end: int | None) -> bytes:
        def request() -> "asyncio.Task[bytes]":
            return asyncio.ensure_future(self._filesystem._cat_file(path, start=start, end=end))  # noqa: SLF001 - fsspec's interface for its own loop

        running = {request()}
        try:
            async with asyncio.timeout(self._patience.deadline_s):
                done, _ = await asyncio.wait(running, timeout=self._hedge_s())
                if not done:
                    running.add(request())
                while True:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    won = [task for task in done if not task.exception()]
                    if won or not running:
                        return (won or list(done))[0].result()
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {self._patience.deadline_s:g} s") from error
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _hedge_s(self) -> float:
        durations = tuple(self._durations)
        if len(durations) < _FEW_DURATIONS:
            return self._patience.deadline_s / 4
        return max(
            self._patience.least_hedge_s,
            self._patience.hedge_factor * statistics.median(durations),
        )


def fetch_bytes(url: str, name: str) -> bytes:
    """All bytes of the small file `name` in the folder behind `url`.

    Raises:
        HeadraceError: it cannot be read, or there is no driver for the URL.
        FileNotFoundError: it is not there.
    """
    return Fetcher(url, Patience(), threading.Event()).read(name)


def _is_worth_another(error: BaseException) -> bool:
    return not isinstance(error, Closed) and may_pass(error)
