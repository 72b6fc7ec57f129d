import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from trainers.reader.ahead import Position, ReadAhead
from trainers.reader.slots import Slot

NUM_STEPS = 20


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def slots(number: int) -> list[Slot]:
    return [Slot(range(1), 1, (1, 1, 1), torch.device("cpu")) for _ in range(number)]


def positions() -> Iterator[Position]:
    return (Position(0, step) for step in range(NUM_STEPS))


def write(slot: Slot, position: Position) -> None:
    slot.ids[:] = position.step


def test_batches_come_in_order_though_threads_finish_in_another(
    threads: ThreadPoolExecutor,
) -> None:
    first_may_end = threading.Event()

    def fill(slot: Slot, position: Position) -> None:
        if position.step == 0:
            assert first_may_end.wait(60)
        write(slot, position)
        if position.step == 2:
            first_may_end.set()

    batches = ReadAhead(positions(), slots(3), fill, threads)
    read = [(batch.step, int(batch.microbatches[0].ids)) for batch in batches]
    assert read == [(step, step) for step in range(NUM_STEPS)]


def test_a_batch_is_left_alone_until_the_next_is_asked_for(threads: ThreadPoolExecutor) -> None:
    filled = threading.Semaphore(0)

    def fill(slot: Slot, position: Position) -> None:
        write(slot, position)
        filled.release()

    batches = ReadAhead(positions(), slots(3), fill, threads)
    for step in range(NUM_STEPS):
        batch = next(batches)
        # Everything that could be read ahead has been read by now, or is there to be waited for.
        assert filled.acquire(timeout=60)
        assert int(batch.microbatches[0].ids) == step


def test_reading_begins_before_the_first_batch_is_asked_for(threads: ThreadPoolExecutor) -> None:
    begun = threading.Semaphore(0)

    def fill(slot: Slot, position: Position) -> None:
        write(slot, position)
        begun.release()

    batches = ReadAhead(positions(), slots(3), fill, threads)
    for _ in range(3):
        assert begun.acquire(timeout=60)
    batches.stop()


def test_an_error_is_raised_for_the_batch_it_belongs_to(threads: ThreadPoolExecutor) -> None:
    def fill(slot: Slot, position: Position) -> None:
        if position.step == 5:
            raise ValueError("step 5")
        write(slot, position)

    batches = ReadAhead(positions(), slots(4), fill, threads)
    assert [next(batches).step for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="step 5"):
        next(batches)


def test_stopping_waits_for_what_is_being_read_and_gives_up_the_rest() -> None:
    running, may_end = threading.Event(), threading.Event()
    filled = []

    def fill(_slot: Slot, position: Position) -> None:
        running.set()
        assert may_end.wait(60)
        filled.append(position.step)

    with ThreadPoolExecutor(1) as threads:
        batches = ReadAhead(positions(), slots(4), fill, threads)
        assert running.wait(60)
        stopping = threading.Thread(target=batches.stop)
        stopping.start()
        stopping.join(0.05)
        assert stopping.is_alive()
        may_end.set()
        stopping.join(60)
        assert not stopping.is_alive()
    assert filled == [0]


def test_an_iteration_that_was_stopped_says_so(threads: ThreadPoolExecutor) -> None:
    batches = ReadAhead(positions(), slots(2), write, threads)
    next(batches)
    batches.stop()
    with pytest.raises(RuntimeError, match="was ended"):
        next(batches)
