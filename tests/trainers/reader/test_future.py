import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainers.reader.future import Future, max_shards_at_once
from trainers.reader.order import Order, Plan, Tail

NUM_EPOCHS = 3


@st.composite
def orders(draw: st.DrawFn) -> Order:
    rows = draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
    tail: Tail = draw(st.sampled_from(["drop", "wrap", "pad"]))
    largest = sum(rows) if tail == "drop" else 40
    window = draw(st.none() | st.integers(1, 14))
    plan = Plan(draw(st.integers(0, 3)), draw(st.integers(1, largest)), 1, window, tail)
    return Order("version", "train", np.array(rows), plan)


def shards_of_steps(order: Order) -> list[set[int]]:
    """The shards that each batch of all epochs is read from, by drawing the batches."""
    first_ids = np.cumsum(order.num_rows) - order.num_rows
    steps = []
    for epoch in range(NUM_EPOCHS):
        for batch in order.draw_epoch(epoch).batches(0, order.num_steps):
            ids: NDArray[Any] = batch[batch >= 0]
            steps.append(set((np.searchsorted(first_ids, ids, side="right") - 1).tolist()))
    return steps


@given(order=orders(), num_batches=st.integers(1, 4), data=st.data())
@settings(max_examples=150)
def test_what_batches_are_read_from_is_current_and_within_the_bound(
    order: Order, num_batches: int, data: st.DataObject
) -> None:
    steps = shards_of_steps(order)
    begin = data.draw(st.integers(0, len(steps) - 1))
    end = min(begin + num_batches, len(steps))
    size = order.plan.batch_size
    view = Future(order, NUM_EPOCHS).view(begin * size, end * size, 2)
    needed = set().union(*steps[begin:end])
    assert needed <= set(view.current)
    assert len(view.current) <= max_shards_at_once(order, num_batches)
    assert len(view.ahead) <= 2
    assert not {*view.current} & {*view.ahead}


@given(order=orders(), data=st.data())
@settings(max_examples=100)
def test_a_view_holds_until_it_says_that_it_does_not(order: Order, data: st.DataObject) -> None:
    steps, size = shards_of_steps(order), order.plan.batch_size
    begin = data.draw(st.integers(0, len(steps) - 1))
    view = Future(order, NUM_EPOCHS).view(begin * size, (begin + 1) * size, 1)
    for step in range(begin, len(steps)):
        if step * size >= view.leaves or (step + 1) * size > view.enters:
            break
        assert steps[step] <= set(view.current)


@given(order=orders(), data=st.data())
@settings(max_examples=100)
def test_no_shard_is_read_before_its_next_use(order: Order, data: st.DataObject) -> None:
    steps, size = shards_of_steps(order), order.plan.batch_size
    begin = data.draw(st.integers(0, len(steps) - 1))
    view = Future(order, NUM_EPOCHS).view(begin * size, (begin + 1) * size, 1)
    horizon = (begin // order.num_steps + 2) * order.num_steps
    for shard in range(len(order.num_rows)):
        uses = [step for step in range(begin, min(horizon, len(steps))) if shard in steps[step]]
        if uses:
            assert view.next_use[shard] < (uses[0] + 1) * size
    assert view.end_of_epoch == (begin // order.num_steps + 1) * order.num_steps * size


def test_what_comes_next_comes_first() -> None:
    plan = Plan(0, 10, 1, None, "pad")
    order = Order("version", "test", np.array([10, 10, 10, 10, 10]), plan)
    view = Future(order, 1).view(10, 20, 2)
    assert view.current == [1]
    assert view.ahead == [2, 3]
    assert view.next_use.tolist() == [math.inf, 10, 20, 30, 40]


def test_the_next_epoch_is_known_and_the_end_of_the_run_too() -> None:
    order = Order("version", "test", np.array([10, 10, 10]), Plan(0, 10, 1, None, "pad"))
    assert Future(order, 2).view(20, 30, 2).ahead == [0, 1]
    assert Future(order, 1).view(20, 30, 2).ahead == []
