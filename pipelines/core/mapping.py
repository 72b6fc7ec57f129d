"""Parallel maps on Dask: a retrying pool over idempotent tasks.

Only `client.map` and results in the order of the items: no dataframe, no shuffle, so that neither
the number of workers nor the death of one can change a result. A worker that dies has its tasks run
again elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Generic, TypeVar

from tqdm import tqdm

from pipelines.core.errors import HeadraceError

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
R = TypeVar("R")

_RETRIES = 2
_SECONDS_BETWEEN_LINES = 10.0
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

log = logging.getLogger("headrace.progress")


class _Fault(Generic[R]):
    """A HeadraceError, or that a disk is full, as a result.

    Raising it in the task would have Dask retry what cannot get better, and log each try.
    """

    def __init__(self, error: HeadraceError | OSError) -> None:
        self.error = error


def _guarded(function: Callable[[T], R], item: T) -> R | _Fault[R]:
    try:
        return function(item)
    except HeadraceError as error:
        return _Fault(error)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        return _Fault(error)


def map_over(
    client: Client, function: Callable[[T], R], items: Sequence[T], *, describe: str
) -> list[R]:
    """`[function(item) for item in items]` on a Dask cluster, with progress.

    Raises:
        HeadraceError: the first in the order of items, once all tasks have ended; or the OSError
            that a disk is full.
        Exception: what a task raised each of the three times that it was tried.
    """
    import distributed  # noqa: PLC0415 - half a second that most stages can save

    guarded = functools.partial(_guarded, function)
    futures = client.map(
        guarded,
        items,
        pure=False,
        retries=_RETRIES,
        key=describe.replace(" ", "-").replace(":", ""),
    )
    done = distributed.as_completed(futures, loop=client.loop)
    for _ in progress(done, total=len(items), describe=describe):
        pass
    return _sound(client.gather(futures))


def map_here(
    function: Callable[[T], R], items: Sequence[T], *, num_threads: int, describe: str
) -> list[R]:
    """The same in threads of this process, without Dask, whose import takes longer than few tasks.

    Raises:
        HeadraceError: as `map_over`.
        Exception: as `map_over`.
    """
    with ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(_tried, function, item) for item in items]
        for _ in progress(as_completed(futures), total=len(items), describe=describe):
            pass
    return _sound([future.result() for future in futures])


def _tried(function: Callable[[T], R], item: T) -> R | _Fault[R]:
    """Do a task again where it fails, as often as Dask would."""
    for _ in range(_RETRIES):
        with contextlib.suppress(Exception):
            return _guarded(function, item)
    return _guarded(function, item)


def _sound(results: Sequence[R | _Fault[R]]) -> list[R]:
    """The results; raises the first fault."""
    sound: list[R] = []
    for result in results:
        if isinstance(result, _Fault):
            raise result.error
        sound.append(result)
    return sound


def progress(steps: Iterator[T], *, total: int, describe: str) -> Iterator[T]:
    """Pass `steps` on while showing how far they are.

    A bar on a terminal, a line now and then elsewhere.
    """
    if sys.stderr.isatty():
        yield from tqdm(steps, total=total, desc=describe, leave=False, dynamic_ncols=True)
        return
    last = time.monotonic()
    for done, step in enumerate(steps, start=1):
        yield step
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            log.info("%s: %d of %d", describe, done, total)
