"""Threads that read, and that cannot hold up the end of the process.

A thread that hangs in a page fault (a network file system that went away) cannot be ended. Those of
`ThreadPoolExecutor` are joined when Python ends, so the error that tells of the hang would be
followed by another one. These are daemons.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Threads:
    """Runs functions in some threads, in the order in which they were submitted. Close it."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], None]) -> "Future[None]":
        """Have `function` called; its result, or what it raised, comes with the future."""
        future: Future[None] = Future()
        self._tasks.put((future, function))
        return future

    def close(self, timeout_s: float) -> bool:
        """Do what was submitted, then end; whether all threads ended within the time."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                    future.set_exception(error)
            del task, future, function  # Or they would live until the next task comes.
