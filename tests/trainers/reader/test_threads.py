import subprocess
import sys
import threading

import pytest

from trainers.reader.threads import Threads


def test_functions_run_side_by_side() -> None:
    threads = Threads(2, "test")
    both_run = threading.Barrier(2)
    waited: list[int] = []
    futures = [threads.submit(lambda: waited.append(both_run.wait(60))) for _ in range(2)]
    for future in futures:
        future.result(60)
    assert sorted(waited) == [0, 1]
    assert threads.close(60)


def test_what_a_function_raises_comes_with_its_future() -> None:
    def fail() -> None:
        raise ValueError("no")

    threads = Threads(1, "test")
    with pytest.raises(ValueError, match="no"):
        threads.submit(fail).result(60)
    assert threads.close(60)


def test_closing_does_first_what_was_submitted() -> None:
    done: list[int] = []
    threads = Threads(1, "closing")
    for number in range(20):
        threads.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert threads.close(60)
    assert done == list(range(20))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("closing-")]


def test_what_was_cancelled_is_not_done() -> None:
    may_end, done = threading.Event(), threading.Event()
    threads = Threads(1, "test")
    waited: list[bool] = []
    threads.submit(lambda: waited.append(may_end.wait(60)))
    waiting = threads.submit(done.set)
    assert waiting.cancel()
    may_end.set()
    assert threads.close(60)
    assert not done.is_set()


def test_a_thread_that_hangs_holds_up_neither_closing_nor_the_end_of_the_process() -> None:
    script = (
        "import threading\n"
        "from trainers.reader.threads import Threads\n"
        "threads = Threads(1, 'test')\n"
        "threads.submit(threading.Event().wait)\n"
        "print(threads.close(0.1))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
