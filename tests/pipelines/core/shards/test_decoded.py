"""Exact statistics, in any order of adding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.shards.decoded import Moments


def images(seed: int, num: int, shape: tuple[int, int, int]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num, *shape), dtype=np.uint8)


@given(
    seed=st.integers(0, 2**32),
    num=st.integers(0, 9),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.sampled_from([1, 3]),
)
def test_sums_are_those_of_whole_numbers(
    seed: int, num: int, height: int, width: int, channels: int
) -> None:
    pixels = images(seed, num, (height, width, channels))
    found = Moments.of(pixels)
    whole = pixels.reshape(-1, channels).astype(object)
    assert found.num_pixels == len(whole)
    assert found.sums == tuple(sum(whole[:, c]) for c in range(channels))
    assert found.squares == tuple(sum(whole[:, c] ** 2) for c in range(channels))


def test_sums_do_not_overflow() -> None:
    white = np.full((70_000, 1, 2, 3), 255, np.uint8)
    found = Moments.of(white)
    assert found.sums == (255 * 140_000,) * 3
    assert found.squares == (255**2 * 140_000,) * 3


@given(st.permutations(range(5)))
def test_the_total_depends_on_no_order(order: list[int]) -> None:
    parts = [Moments.of(images(seed, seed, (3, 4, 3))) for seed in range(5)]
    assert Moments.total([parts[at] for at in order], 3) == Moments.total(parts, 3)


def test_mean_and_std_are_on_a_scale_of_one() -> None:
    black_and_white = np.zeros((2, 4, 4, 1), np.uint8)
    black_and_white[1] = 255
    found = Moments.of(black_and_white)
    assert found.mean == (0.5,)
    assert found.std == (0.5,)


def test_a_constant_channel_has_no_deviation() -> None:
    assert Moments.of(np.full((3, 5, 5, 1), 77, np.uint8)).std == (0.0,)


def test_of_nothing_there_is_no_mean() -> None:
    nothing = Moments.total([], 3)
    assert nothing.num_pixels == 0
    assert nothing.mean is None
    assert nothing.std is None


def test_mean_is_rounded_to_six_digits() -> None:
    found = Moments.of(images(0, 7, (5, 5, 3)))
    assert found.mean is not None
    assert found.mean == pytest.approx(images(0, 7, (5, 5, 3)).mean((0, 1, 2)) / 255, abs=1e-6)
    assert all(value == round(value, 6) for value in found.mean)
