import threading
from collections.abc import Iterator

import pytest
import torch

from pipelines.core.errors import HeadraceError
from trainers.reader.ahead import Position, ReadAhead, Watch
from trainers.reader.slots import Slot
from trainers.reader.threads import Threads

NUM_STEPS = 20
PATIENT = Watch(60, lambda position: HeadraceError(f"{position} has not come"))


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(4, "test")
    yield threads
    assert threads.close(60)


def slots(number: int) -> list[Slot]:
    return [Slot(range(1), 1, (1, 1, 1), torch.device("cpu")) for _ in range(number)]


def positions() -> Iterator[Position]:
    return (Position(0, step) for step in range(NUM_STEPS))


def write(slot: Slot, position: Position) -> None:
    slot.ids[:] = position.step


def test_batches_come_in_order_though_threads_finish_in_another(
    threads: Threads,
) -> None:
    first_may_end = threading.Event()

    def fill(slot: Slot, position: Position) -> None:
        if position.step == 0:
            assert first_may_end.wait(60)
        write(slot, position)
        if position.step == 2:
            first_may_end.set()

    batches = ReadAhead(positions(), slots(3), fill, threads, PATIENT)
    read = [(batch.step, int(batch.microbatches[0].ids)) for batch in batches]
    assert read == [(step, step) for step in range(NUM_STEPS)]


def test_a_batch_is_left_alone_until_the_next_is_asked_for(threads: Threads) -> None:
    filled = threading.Semaphore(0)

    def fill(slot: Slot, position: Position) -> None:
        write(slot, position)
        filled.release()

    batches = ReadAhead(positions(), slots(3), fill, threads, PATIENT)
    for step in range(NUM_STEPS):
        batch = next(batches)
        # Everything that could be read ahead has been read by now, or is there to be waited for.
        assert filled.acquire(timeout=60)
        assert int(batch.microbatches[0].ids) == step


def test_reading_begins_before_the_first_batch_is_asked_for(threads: Threads) -> None:
    begun = threading.Semaphore(0)

    def fill(slot: Slot, position: Position) -> None:
        write(slot, position)
        begun.release()

    batches = ReadAhead(positions(), slots(3), fill, threads, PATIENT)
    for _ in range(3):
        assert begun.acquire(timeout=60)
    batches.stop()


def test_an_error_is_raised_for_the_batch_it_belongs_to(threads: Threads) -> None:
    def fill(slot: Slot, position: Position) -> None:
        if position.step == 5:
            raise ValueError("step 5")
        write(slot, position)

    batches = ReadAhead(positions(), slots(4), fill, threads, PATIENT)
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

    threads = Threads(1, "test")
    batches = ReadAhead(positions(), slots(4), fill, threads, PATIENT)
    assert running.wait(60)
    stopping = threading.Thread(target=batches.stop)
    stopping.start()
    stopping.join(0.05)
    assert stopping.is_alive()
    may_end.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert threads.close(60)
    assert filled == [0]


def test_an_iteration_that_was_stopped_says_so(threads: Threads) -> None:
    batches = ReadAhead(positions(), slots(2), write, threads, PATIENT)
    next(batches)
    batches.stop()
    with pytest.raises(RuntimeError, match="was ended"):
        next(batches)


@pytest.mark.timeout(60)
def test_a_stall_is_an_error_that_says_what_was_waited_for(threads: Threads) -> None:
    may_end = threading.Event()
    asked: list[Position] = []

    def describe(position: Position) -> HeadraceError | None:
        asked.append(position)
        return HeadraceError(f"step {position.step} hangs") if len(asked) == 3 else None

    def fill(slot: Slot, position: Position) -> None:
        if position.step == 2:
            may_end.wait(60)
        write(slot, position)

    batches = ReadAhead(positions(), slots(2), fill, threads, Watch(0.02, describe))
    assert [next(batches).step for _ in range(2)] == [0, 1]
    with pytest.raises(HeadraceError, match="step 2 hangs"):
        next(batches)
    assert asked == [Position(0, 2)] * 3  # Twice somebody else was looking after it.
    batches.stop()
    may_end.set()
