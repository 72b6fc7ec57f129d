"""What is odd beside the others of its dataset, by robust z-scores."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipelines.core.images.features import Features
from pipelines.core.samples.outliers import (
    MEASURES,
    Columns,
    MaxScores,
    columns_of,
    find,
    robust_z,
    scores_of,
    summary,
)

PLAIN = Features(width=100, height=80, sharpness=900, brightness=120, contrast=50)


def dataset(**odd: Any) -> Columns:
    """Two hundred usual images, and a last one that differs in the given features."""
    rng = np.random.default_rng(0)
    usual = [
        Features(
            width=int(rng.integers(90, 110)),
            height=int(rng.integers(70, 90)),
            sharpness=float(rng.uniform(700, 1100)),
            brightness=float(rng.uniform(110, 130)),
            contrast=float(rng.uniform(45, 55)),
        )
        for _ in range(200)
    ]
    return columns_of([*usual, replace(PLAIN, **odd)])


def test_scores_are_distances_from_the_median_in_robust_deviations() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 100.0])
    assert robust_z(values) == pytest.approx((values - 3) / 1.4826)


def test_scores_of_normal_values_are_their_z_scores() -> None:
    values = np.random.default_rng(0).normal(5, 3, 100_000)
    assert robust_z(values) == pytest.approx((values - 5) / 3, abs=0.1)


def test_where_most_values_are_equal_the_mean_deviation_is_the_scale() -> None:
    assert robust_z(np.array([2.0] * 9 + [12.0]))[-1] == pytest.approx(10 / 1.2533)
    assert robust_z(np.array([2.0] * 9)).tolist() == [0] * 9
    assert robust_z(np.empty(0)).tolist() == []


@pytest.mark.parametrize(
    ("measure", "odd"),
    [
        ("blur", {"sharpness": 3}),
        ("darkness", {"brightness": 20}),
        ("low_information", {"contrast": 4}),
        ("size", {"width": 1000, "height": 800}),
        ("size", {"width": 10, "height": 8}),
        ("aspect", {"width": 20, "height": 400}),
    ],
)
def test_an_odd_sample_is_found_by_its_measure_alone(measure: str, odd: dict[str, Any]) -> None:
    scores = scores_of(dataset(**odd))
    found = find(scores, replace(MaxScores(), **{measure: 6}))
    assert list(found) == [200]
    assert found[200].startswith(f"{measure} has z ")
    others = dict.fromkeys(set(MEASURES) - {measure}, 6.0)
    assert find(scores, MaxScores(**others)) == {}


@pytest.mark.parametrize("bright", [{"brightness": 250}, {"sharpness": 9000}, {"contrast": 120}])
def test_brighter_sharper_and_richer_samples_are_no_outliers(bright: dict[str, Any]) -> None:
    assert find(scores_of(dataset(**bright)), MaxScores(6, 6, 6, 6, 6)) == {}


def test_without_thresholds_there_are_no_outliers() -> None:
    assert find(scores_of(dataset(brightness=0)), MaxScores()) == {}


def test_summary_counts_what_each_threshold_would_drop() -> None:
    scores = scores_of(dataset(brightness=20))
    told: Any = summary(scores)["darkness"]
    for level in (3, 10):
        assert told["num_beyond"][f"z_{level:02d}"] == len(find(scores, MaxScores(darkness=level)))
    assert told["num_beyond"]["z_10"] == 1
    assert told["max_z"] > 10
