import numpy as np
import pytest

from pipelines.core.page import drift
from pipelines.core.page.drift import Drift


def numbers(one: object, other: object) -> Drift:
    found = drift.of_numbers("x", np.array(one), np.array(other))
    assert found is not None
    return found


def counts(one: object, other: object) -> Drift:
    found = drift.of_counts("x", np.array(one), np.array(other))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ([1, 2, 3], [3, 1, 2], 0),
        ([1, 2], [3, 4], 1),
        ([1, 2, 3, 4], [3, 4, 5, 6], 0.5),
        ([0, 0, 0, 1], [0, 1, 1, 1], 0.5),
        ([1], [0, 2], 0.5),
    ],
)
def test_the_distance_of_numbers_is_that_of_kolmogorov_and_smirnov(
    one: list[int], other: list[int], distance: float
) -> None:
    assert numbers(one, other).distance == pytest.approx(distance)
    assert numbers(other, one).distance == pytest.approx(distance)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [([1, 1], [5, 5], 0), ([3, 0], [0, 9], 1), ([3, 1], [1, 3], 0.5), ([2, 2, 0], [1, 1, 2], 0.5)],
)
def test_the_distance_of_names_is_the_total_variation(
    one: list[int], other: list[int], distance: float
) -> None:
    assert counts(one, other).distance == pytest.approx(distance)


def test_chance_is_what_equal_splits_differ_by_on_average() -> None:
    rng = np.random.default_rng(1)
    shares = np.array([0.5, 0.3, 0.2])
    found = [
        (
            numbers(rng.normal(size=400), rng.normal(size=250)),
            counts(rng.multinomial(400, shares), rng.multinomial(250, shares)),
        )
        for _ in range(300)
    ]
    for kind in zip(*found, strict=True):
        mean = np.mean([it.distance for it in kind])
        assert mean == pytest.approx(np.mean([it.chance for it in kind]), rel=0.1)
        assert np.mean([it.is_notable for it in kind]) < 0.03


def test_what_chance_does_not_explain_is_notable() -> None:
    rng = np.random.default_rng(1)
    assert numbers(rng.normal(size=400), rng.normal(0.5, size=400)).is_notable
    assert counts([500, 500], [600, 400]).is_notable
    assert not numbers([1], [100]).is_notable
    assert not counts([7], [900]).is_notable


def test_an_empty_split_has_no_drift() -> None:
    assert drift.of_numbers("x", np.array([]), np.array([1.0])) is None
    assert drift.of_counts("x", np.array([0, 0]), np.array([1, 0])) is None
