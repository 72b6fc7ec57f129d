"""What the tables of bands find is what a comparison of all pairs finds."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.samples import hamming
from pipelines.core.samples.hamming import MAX_RADIUS, components, pairs_within

BITS = st.lists(st.integers(0, 63), max_size=MAX_RADIUS + 2)


@st.composite
def alike(draw: st.DrawFn) -> list[int]:
    """Hashes around a few centres, at distances on both sides of the radius."""
    centres = draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3))
    found = set(centres)
    for flips in draw(st.lists(BITS, max_size=12)):
        found.add(draw(st.sampled_from(centres)) ^ sum({1 << bit for bit in flips}))
    return sorted(found)


def all_pairs(hashes: list[int], radius: int) -> list[tuple[int, int]]:
    rows = itertools.combinations(range(len(hashes)), 2)
    return [(a, b) for a, b in rows if (hashes[a] ^ hashes[b]).bit_count() <= radius]


def found_pairs(hashes: list[int], radius: int) -> list[tuple[int, int]]:
    one, other = pairs_within(np.array(hashes, np.uint64), radius)
    return list(zip(one.tolist(), other.tolist(), strict=True))


@given(alike(), st.integers(0, MAX_RADIUS))
def test_bands_find_what_a_comparison_of_all_pairs_finds(hashes: list[int], radius: int) -> None:
    assert found_pairs(hashes, radius) == all_pairs(hashes, radius)


@pytest.mark.parametrize("num_equal", range(1, 7))
@pytest.mark.parametrize("radius", [0, 1, 4, 7, MAX_RADIUS])
def test_every_way_to_cut_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, num_equal: int, radius: int
) -> None:
    rng = np.random.default_rng(radius)
    hashes = {int(value) for value in rng.integers(0, 2**63, 4)}
    for value in list(hashes):
        for num_flips in range(2, 2 * radius + 2):
            hashes.add(value ^ sum(1 << int(bit) for bit in rng.permutation(64)[:num_flips]))
    monkeypatch.setattr(hamming, "_cut", lambda *_: (radius + num_equal, num_equal))
    ordered = sorted(hashes)
    expected = all_pairs(ordered, radius)
    assert found_pairs(ordered, radius) == expected
    assert bool(expected) == (radius > 1)


@pytest.mark.parametrize("num_hashes", [0, 1])
def test_too_few_hashes_make_no_pair(num_hashes: int) -> None:
    assert found_pairs([7] * num_hashes, 4) == []


def test_more_hashes_are_cut_so_that_fewer_are_equal_by_chance() -> None:
    assert hamming._cut(20_000, 4) == (5, 1)
    assert hamming._cut(1_000_000, 8)[1] > 1


LINKS = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40)


@given(LINKS)
def test_components_are_the_least_rows_that_links_lead_to(links: list[tuple[int, int]]) -> None:
    reached = list(range(30))
    for _ in range(30):
        for one, other in links:
            reached[one] = reached[other] = min(reached[one], reached[other])
    pairs = np.array(links, np.int64).reshape(-1, 2).T
    assert components(30, (pairs[0], pairs[1])).tolist() == reached


def test_a_long_chain_is_one_component() -> None:
    order = np.random.default_rng(0).permutation(5000)
    assert set(components(5000, (order[:-1], order[1:])).tolist()) == {0}
