import math

import numpy as np
import pytest

from trainers.scores import Predictions, Scores, score


def predictions(labels: list[int], probabilities: list[list[float]]) -> Predictions:
    num = len(labels)
    return Predictions(
        ids=np.arange(num),
        keys=[f"key{row}" for row in range(num)],
        labels=np.array(labels),
        log_probabilities=np.log(np.array(probabilities, np.float32)),
    )


def test_scores_are_those_of_the_textbook() -> None:
    # Cats, dogs and hens: of 10 cats 7 found; 8 called cats, 7 rightly; and so on.
    scores = Scores(np.array([[7, 3, 0], [1, 4, 0], [0, 1, 4]]))
    assert scores.num_samples == 20
    assert scores.accuracy == 15 / 20
    assert scores.num_by_class.tolist() == [10, 5, 5]
    assert scores.recall.tolist() == [7 / 10, 4 / 5, 4 / 5]
    assert scores.precision.tolist() == [7 / 8, 4 / 8, 4 / 4]
    assert scores.macro_recall == pytest.approx((0.7 + 0.8 + 0.8) / 3)
    assert scores.macro_precision == pytest.approx((0.875 + 0.5 + 1) / 3)


def test_a_class_that_is_never_predicted_has_precision_zero() -> None:
    scores = Scores(np.array([[3, 0], [2, 0]]))
    assert scores.precision.tolist() == [0.6, 0.0]
    assert scores.macro_precision == 0.3


def test_a_class_without_samples_has_no_recall_and_counts_in_no_mean() -> None:
    scores = Scores(np.array([[4, 0, 0], [0, 4, 0], [0, 0, 0]]))
    assert math.isnan(scores.recall[2])
    assert math.isnan(scores.precision[2])
    assert scores.macro_recall == 1
    assert scores.macro_precision == 1


def test_the_confusion_matrix_has_the_truth_in_rows() -> None:
    seen = predictions([0, 0, 1, 2], [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]] + [[0.1, 0.1, 0.8]] * 2)
    assert score(seen).confusion.tolist() == [[1, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_the_loss_is_the_mean_cross_entropy() -> None:
    seen = predictions([0, 1], [[0.5, 0.5], [0.75, 0.25]])
    assert seen.loss == pytest.approx((math.log(2) + math.log(4)) / 2)


def test_of_equally_likely_classes_the_first_is_predicted() -> None:
    assert predictions([2], [[0.2, 0.4, 0.4]]).predicted.tolist() == [1]


def test_the_worst_mistakes_are_the_most_confident_ones() -> None:
    seen = predictions(
        [0, 0, 1, 0, 1], [[0.4, 0.6], [0.9, 0.1], [0.95, 0.05], [0.2, 0.8], [0.8, 0.2]]
    )
    assert seen.worst_mistakes(9).tolist() == [2, 3, 4, 0]  # 3 before 4: equal, in order of keys
    assert seen.worst_mistakes(2).tolist() == [2, 3]
    assert seen.worst_mistakes(0).tolist() == []


def test_confidence_is_ranked_where_a_float_has_run_out() -> None:
    log_probabilities = np.array([[-20.0, -1e-9], [-30.0, -1e-13]], np.float32)
    seen = Predictions(np.arange(2), ["a", "b"], np.array([0, 0]), log_probabilities)
    assert seen.confidence.tolist() == [1.0, 1.0]
    assert seen.worst_mistakes(2).tolist() == [1, 0]
