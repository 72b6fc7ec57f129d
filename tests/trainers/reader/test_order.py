import dataclasses
import time
import tracemalloc
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines.core.errors import HeadraceError
from trainers.reader.order import (
    PADDING,
    Order,
    Plan,
    State,
    check_version,
    evaluation,
    logical_workers_of,
    training,
)

VERSION = "f" * 64
# Uneven on purpose: shards without a sample, with one, and with many.
shard_sizes = st.lists(st.sampled_from([0, 1, 2, 3, 7, 40, 200]), min_size=1, max_size=12).filter(
    any
)


@st.composite
def orders(draw: st.DrawFn, *tails: Literal["drop", "wrap", "pad"]) -> Order:
    num_workers = draw(st.integers(1, 5))
    plan = Plan(
        seed=draw(st.integers(0, 3)),
        batch_size=num_workers * draw(st.integers(1, 9)),
        num_logical_workers=num_workers,
        window_shards=draw(st.none() | st.integers(1, 14)),
        tail=draw(st.sampled_from(tails)),
    )
    return Order(VERSION, "train", np.array(draw(shard_sizes)), plan)


def epoch_of(order: Order, epoch: int) -> npt.NDArray[np.int64]:
    """All batches of an epoch, [num_steps, K, b]."""
    return order.draw_epoch(epoch).batches(0, order.num_steps)


def order_of(*num_rows: int, **changes: Any) -> Order:
    plan = training(seed=1, batch_size=4, num_logical_workers=2, window_shards=2, tail="drop")
    return Order(VERSION, "train", np.array(num_rows), dataclasses.replace(plan, **changes))


@given(order=orders("pad"), epoch=st.integers(0, 3))
def test_with_padding_every_sample_comes_exactly_once(order: Order, epoch: int) -> None:
    ids = epoch_of(order, epoch).ravel()
    assert np.array_equal(np.sort(ids[ids != PADDING]), np.arange(order.num_samples))
    assert (ids == PADDING).sum() == -order.num_samples % order.plan.batch_size


@given(order=orders("drop"), epoch=st.integers(0, 3))
def test_dropping_leaves_out_less_than_a_batch_and_repeats_nothing(
    order: Order, epoch: int
) -> None:
    ids = epoch_of(order, epoch).ravel()
    assert len(np.unique(ids)) == len(ids)
    assert len(ids) == order.num_samples - order.num_samples % order.plan.batch_size
    assert ((ids >= 0) & (ids < order.num_samples)).all()


@given(order=orders("wrap"), epoch=st.integers(0, 3))
def test_wrapping_repeats_only_what_fills_the_last_batch(order: Order, epoch: int) -> None:
    counts = np.bincount(epoch_of(order, epoch).ravel(), minlength=order.num_samples)
    num_places = order.num_steps * order.plan.batch_size
    assert num_places - order.num_samples == -order.num_samples % order.plan.batch_size
    assert counts.min() == num_places // order.num_samples
    assert counts.max() <= -(-num_places // order.num_samples)


@given(order=orders("drop", "wrap", "pad"), epoch=st.integers(0, 2), data=st.data())
def test_seeking_equals_replaying(order: Order, epoch: int, data: st.DataObject) -> None:
    replayed = epoch_of(order, epoch)
    if not order.num_steps:
        return
    step = data.draw(st.integers(0, order.num_steps - 1))
    num_steps = data.draw(st.integers(1, order.num_steps - step))
    sought = order.draw_epoch(epoch).batches(step, num_steps)
    assert np.array_equal(sought, replayed[step : step + num_steps])


@given(order=orders("drop", "wrap", "pad"), world_size=st.integers(1, 5), epoch=st.integers(0, 2))
def test_ranks_divide_every_batch_and_have_equal_steps(
    order: Order, world_size: int, epoch: int
) -> None:
    num_workers = order.plan.num_logical_workers
    batches = epoch_of(order, epoch)
    if world_size > num_workers:
        return
    parts = [
        batches[:, logical_workers_of(rank, world_size, num_workers)] for rank in range(world_size)
    ]
    assert {len(part) for part in parts} == {order.num_steps}
    assert all(part.shape[1] for part in parts)
    together = np.concatenate(parts, axis=1).reshape(order.num_steps, order.plan.batch_size)
    assert np.array_equal(
        np.sort(together, axis=1),
        np.sort(batches.reshape(order.num_steps, order.plan.batch_size), axis=1),
    )


@given(order=orders("drop", "wrap", "pad"), data=st.data())
def test_a_global_batch_does_not_depend_on_the_number_of_logical_workers(
    order: Order, data: st.DataObject
) -> None:
    size = order.plan.batch_size
    divisors = [number for number in range(1, size + 1) if size % number == 0]
    plan = dataclasses.replace(order.plan, num_logical_workers=data.draw(st.sampled_from(divisors)))
    other = Order(VERSION, "train", order.num_rows, plan)
    batches = [
        np.sort(epoch_of(each, 1).reshape(order.num_steps, order.plan.batch_size), axis=1)
        for each in (order, other)
    ]
    assert np.array_equal(batches[0], batches[1])


@given(order=orders("drop", "wrap", "pad"))
def test_a_microbatch_stands_in_storage_order_with_padding_last(order: Order) -> None:
    for microbatch in epoch_of(order, 0).reshape(-1, order.plan.microbatch_size):
        samples = microbatch[microbatch != PADDING]
        assert np.array_equal(samples, np.sort(samples))
        assert (microbatch[len(samples) :] == PADDING).all()


@given(order=orders("drop", "pad"))
@example(order_of(10, 10, 10, 10, 10, window_shards=2))
def test_no_more_shards_than_a_window_are_mixed(order: Order) -> None:
    window = order.plan.window_shards
    if window is None:
        return
    places = np.arange(order.num_samples)
    shard = np.searchsorted(
        np.cumsum(order.num_rows), order.draw_epoch(0).ids_at(places), side="right"
    )
    last_seen = {number: int(np.flatnonzero(shard == number)[-1]) for number in np.unique(shard)}
    first_seen = {number: int(np.flatnonzero(shard == number)[0]) for number in np.unique(shard)}
    for place in places:
        unfinished = [s for s in first_seen if first_seen[s] <= place <= last_seen[s]]
        assert len(unfinished) <= window


def test_another_seed_epoch_version_or_split_gives_another_order() -> None:
    rows = np.array([50, 50, 50, 50])
    plan = order_of(1).plan
    drawn = [
        epoch_of(Order(VERSION, "train", rows, plan), 0),
        epoch_of(Order(VERSION, "train", rows, plan), 1),
        epoch_of(Order(VERSION, "train", rows, dataclasses.replace(plan, seed=2)), 0),
        epoch_of(Order("0" * 64, "train", rows, plan), 0),
        epoch_of(Order(VERSION, "val", rows, plan), 0),
    ]
    assert len({each.tobytes() for each in drawn}) == len(drawn)


def test_the_order_stays_what_it_was_when_checkpoints_were_made() -> None:
    # A change here must come with another name in `order._ORDER`.
    assert epoch_of(order_of(5, 1, 6), 0).tolist() == [
        [[6, 9], [7, 10]],
        [[2, 11], [5, 8]],
        [[1, 3], [0, 4]],
    ]


def test_shards_come_in_another_order_each_epoch() -> None:
    order = order_of(*[8] * 16, window_shards=1)
    firsts = {tuple(epoch_of(order, epoch).reshape(-1)[::8] // 8) for epoch in range(5)}
    assert len(firsts) == 5


def test_evaluation_reads_in_storage_order() -> None:
    plan = evaluation(batch_size=4, num_logical_workers=2)
    batches = epoch_of(Order(VERSION, "test", np.array([3, 4]), plan), 0)
    assert batches.tolist() == [[[0, 2], [1, 3]], [[4, 6], [5, PADDING]]]


def test_a_batch_larger_than_the_split_wraps_around_several_times() -> None:
    order = order_of(3, tail="wrap", batch_size=8)
    assert np.bincount(epoch_of(order, 0).ravel()).tolist() in ([3, 3, 2], [3, 2, 3], [2, 3, 3])


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    order = order_of(8)
    assert order.next_state(0, 0) == State(VERSION, 1, 0, 1)
    assert order.next_state(0, 1) == State(VERSION, 1, 1, 0)


def test_workers_are_dealt_round_robin() -> None:
    dealt = [list(logical_workers_of(rank, 3, 7)) for rank in range(3)]
    assert dealt == [[0, 3, 6], [1, 4], [2, 5]]


def test_more_ranks_than_logical_workers_are_refused() -> None:
    with pytest.raises(HeadraceError, match="more processes than logical workers"):
        logical_workers_of(0, 5, 4)


def test_a_batch_that_cannot_be_dealt_equally_is_refused() -> None:
    with pytest.raises(HeadraceError, match="equal parts"):
        training(seed=1, batch_size=10, num_logical_workers=4, window_shards=1, tail="drop")


@pytest.mark.parametrize("name", ["batch_size", "num_logical_workers", "window_shards"])
def test_a_count_of_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(HeadraceError, match=name):
        order_of(1, **{name: 0})


def test_continuing_on_other_data_is_refused_and_both_versions_are_named() -> None:
    state = State(VERSION, 1, 0, 0)
    check_version(state, VERSION)
    with pytest.raises(HeadraceError) as caught:
        check_version(state, "0" * 64)
    assert VERSION in str(caught.value)
    assert "0" * 64 in str(caught.value)


def test_a_thousand_million_samples_cost_what_their_shards_cost() -> None:
    order = order_of(*[10_000] * 100_000, batch_size=256, window_shards=16)
    tracemalloc.start()
    started = time.process_time()
    order.draw_epoch(7).batches(3_000_000, 1)
    seconds = time.process_time() - started
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 0.5
    assert peak_bytes < 50 << 20
