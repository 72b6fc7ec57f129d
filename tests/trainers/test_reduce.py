import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.trainers.runs import alone
from trainers import reduce
from trainers.reduce import ExactSum, GradientSum

FLOATS = st.floats(width=32, min_value=-(2.0**100), max_value=2.0**100)
SUMMANDS = st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=9)


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    with alone():
        yield


def exact_sum(summands: Sequence[Sequence[Tensor]], num_summands: int) -> list[Tensor]:
    total = ExactSum(num_summands)
    for summand in summands:
        total.add(summand)
    return total.start().wait()


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


@given(SUMMANDS, st.randoms(use_true_random=False))
def test_any_permutation_of_the_summands_gives_the_same_bits(
    values: list[list[float]], random: Random
) -> None:
    summands = [[torch.tensor(row)] for row in values]
    (before,) = exact_sum(summands, len(summands))
    random.shuffle(summands)
    (after,) = exact_sum(summands, len(summands))
    assert bits(before) == bits(after)


@given(SUMMANDS.filter(lambda rows: len(rows) > 1), st.data())
def test_any_split_over_ranks_gives_the_same_grid(
    values: list[list[float]], data: st.DataObject
) -> None:
    summands = [[torch.tensor(row)] for row in values]
    limit = max(abs(value) for row in values for value in row)
    scales = [reduce._scale(limit, len(summands))]
    cut = data.draw(st.integers(1, len(summands) - 1))
    parts = reduce._grid(summands[:cut], scales) + reduce._grid(summands[cut:], scales)
    assert torch.equal(parts, reduce._grid(summands, scales))


@given(st.lists(st.integers(-1_000_000, 1_000_000), min_size=1, max_size=16))
def test_a_sum_of_like_magnitudes_is_the_rounded_true_sum(integers: list[int]) -> None:
    values = np.array(integers, np.float32) / np.float32(1024)
    (total,) = exact_sum([[torch.tensor([value])] for value in values], len(values))
    truth = float(sum(Fraction(float(value)) for value in values))
    assert total.item() == np.float32(truth)


def test_the_order_does_matter_to_plain_addition() -> None:
    values = [torch.tensor([value]) for value in (1e8, 1.0, -1e8)]
    assert not torch.equal(values[0] + values[1] + values[2], values[0] + values[2] + values[1])
    (total,) = exact_sum([[value] for value in values], 3)
    assert total.item() == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_makes_its_tensor_nan_and_no_other(bad: float) -> None:
    summands = [[torch.ones(2), torch.ones(3)], [torch.tensor([1.0, bad]), torch.ones(3)]]
    poisoned, sound = exact_sum(summands, 2)
    assert poisoned.isnan().all()
    assert sound.tolist() == [2.0, 2.0, 2.0]


def test_shapes_and_dtypes_are_kept() -> None:
    def summand() -> list[Tensor]:
        return [torch.full((2, 3), 0.5), torch.tensor(7), torch.tensor(0.25, dtype=torch.float64)]

    floats, whole, double = exact_sum([summand(), summand()], 2)
    assert floats.tolist() == [[1.0] * 3] * 2
    assert (whole.item(), whole.dtype) == (14, torch.int64)
    assert (double.item(), double.dtype) == (0.5, torch.float64)


def test_the_largest_and_smallest_floats_neither_overflow_nor_fail() -> None:
    big = torch.finfo(torch.float32).max
    (total,) = exact_sum([[torch.tensor([big])], [torch.tensor([-big])]], 2)
    assert total.item() == 0.0
    (tiny,) = exact_sum([[torch.tensor([1e-45])], [torch.tensor([1e-45])]], 2)
    assert tiny.item() == pytest.approx(2.8e-45, rel=0.1)
    (zero,) = exact_sum([[torch.zeros(2)]], 1)
    assert zero.tolist() == [0.0, 0.0]


def test_gradients_through_ddp_are_the_mean_over_logical_workers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(20, 2))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = [
        torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last) for _ in range(3)
    ]
    separate = [
        torch.autograd.grad(model(batch).square().mean(), list(model.parameters()))
        for batch in batches
    ]
    ddp = DistributedDataParallel(model)
    total = GradientSum(ddp, 3)
    for batch in batches[:-1]:
        with ddp.no_sync():
            ddp(batch).square().mean().backward()
        total.hold()
    ddp(batches[-1]).square().mean().backward()
    total.finish()
    for parameter, gradients in zip(model.parameters(), zip(*separate, strict=True), strict=True):
        assert parameter.grad is not None
        mean = torch.stack(gradients).double().mean(dim=0).float()
        torch.testing.assert_close(parameter.grad, mean, rtol=1e-6, atol=1e-8)
