import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainers.reader.permutation import NUM_ROUNDS, permute, round_keys, shuffled

MASK = (1 << 64) - 1


def encrypt(cell: int, size: int, keys: list[int]) -> int:
    """The method as the module's docstring tells it, one index at a time, in whole numbers."""
    width = math.isqrt(size - 1) + 1
    height = -(-size // width)

    def draw(value: int, key: int, limit: int) -> int:
        bits = (value + key) * 0xFF51AFD7ED558CCD & MASK
        bits ^= bits >> 32
        bits = bits * 0xC4CEB9FE1A85EC53 & MASK
        return (bits >> 32) * limit >> 32

    row, column = divmod(cell, width)
    for i in range(0, len(keys), 2):
        column = (column + draw(row, keys[i], width)) % width
        row = (row + draw(column, keys[i + 1], height)) % height
    return row * width + column


def walk(index: int, size: int, keys: list[int]) -> int:
    place = encrypt(index, size, keys)
    while place >= size:
        place = encrypt(place, size, keys)
    return place


@given(size=st.integers(1, 3000), seed=st.integers())
@example(size=1, seed=0)
@example(size=2, seed=0)
@example(size=10**4, seed=1)  # a square: no cell beyond the last index
@example(size=10**4 + 1, seed=1)
def test_every_place_is_taken_exactly_once(size: int, seed: int) -> None:
    assert np.array_equal(np.sort(shuffled(size, round_keys(seed))), np.arange(size))


@given(size=st.integers(1, 2**62), seed=st.integers(), data=st.data())
def test_places_are_those_of_the_published_method(
    size: int, seed: int, data: st.DataObject
) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5))
    keys = round_keys(seed)
    expected = [walk(index, size, keys.tolist()) for index in indices]
    assert permute(np.array(indices), size, keys).tolist() == expected


@given(size=st.integers(2, 2**62), seed=st.integers(), data=st.data())
def test_a_part_can_be_computed_alone(size: int, seed: int, data: st.DataObject) -> None:
    indices = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=9)))
    keys = round_keys(seed)
    together = permute(indices, size, keys)
    alone = [int(permute(indices[i : i + 1], size, keys)[0]) for i in range(len(indices))]
    assert together.tolist() == alone
    assert ((together >= 0) & (together < size)).all()


def test_the_indices_given_are_left_as_they_were() -> None:
    indices = np.arange(100)
    permute(indices, 100, round_keys("x"))
    assert np.array_equal(indices, np.arange(100))


def test_keys_depend_on_every_part_and_on_where_one_ends() -> None:
    names = [("a", 1), ("a", 2), ("b", 1), ("a1",), ("a", "1", ""), (1, "a")]
    keys = {round_keys(*name).tobytes() for name in names}
    assert len(keys) == len(names)
    assert len(round_keys("a")) == NUM_ROUNDS


@pytest.mark.parametrize("size", [3, 4])
def test_small_permutations_are_equally_likely(size: int) -> None:
    num_draws = 200 * math.factorial(size)
    seen = Counter(tuple(shuffled(size, round_keys(size, n)).tolist()) for n in range(num_draws))
    expected = num_draws / math.factorial(size)
    chi_square = sum(
        (seen[order] - expected) ** 2 / expected for order in itertools.permutations(range(size))
    )
    # Mean d, variance 2d for d degrees of freedom.
    freedom = math.factorial(size) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)


def test_neighbours_land_at_any_distance_from_each_other() -> None:
    size, num_draws = 50, 1500
    distances = np.zeros(size)
    for number in range(num_draws):
        places = shuffled(size, round_keys("neighbours", number))
        distances += np.bincount(np.diff(places) % size, minlength=size)
    expected = num_draws
    chi_square = float(((distances[1:] - expected) ** 2 / expected).sum())
    assert chi_square < (size - 2) + 4 * math.sqrt(2 * (size - 2))
