"""How good predictions are: counts and ratios over the samples of one split.

Everything comes from the confusion matrix, in whole numbers, so it does not depend on the order of
samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Predictions:
    """What a model said about each sample of a split, in the order of keys.

    Attributes:
        ids: [n] int64, sample ids.
        keys: n of them.
        labels: [n] int64, what is true.
        log_probabilities: [n, C] float32.
    """

    ids: NDArray[np.int64]
    keys: list[str]
    labels: NDArray[np.int64]
    log_probabilities: NDArray[np.float32]

    @property
    def predicted(self) -> NDArray[np.int64]:
        """[n] the likeliest class; of equally likely ones the first."""
        predicted: NDArray[np.int64] = self.log_probabilities.argmax(axis=1)
        return predicted

    @property
    def confidence(self) -> NDArray[np.float32]:
        """[n] probability of the predicted class, 0..1."""
        confidence: NDArray[np.float32] = np.exp(self.log_probabilities.max(axis=1))
        return confidence

    @property
    def loss(self) -> float:
        """Mean cross entropy, natural logarithm."""
        of_truth = self.log_probabilities[np.arange(len(self.labels)), self.labels]
        return -float(of_truth.mean(dtype=np.float64))

    def worst_mistakes(self, num_mistakes: int) -> NDArray[np.int64]:
        """Rows of the most confident mistakes, most confident first; fewer if there are fewer."""
        wrong = np.flatnonzero(self.predicted != self.labels)
        # By the logarithm, which still tells apart what float32 rounds to a probability of 1.
        # Stable: between equals the order of keys decides.
        order = np.argsort(-self.log_probabilities[wrong].max(axis=1), kind="stable")
        return wrong[order[:num_mistakes]]


@dataclass(frozen=True)
class Scores:
    """Scores of a confusion matrix, [C, C] int64: row what is true, column what was predicted."""

    confusion: NDArray[np.int64]

    @property
    def num_samples(self) -> int:
        """All of them."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of samples whose class was predicted."""
        return float(self.confusion.trace() / self.num_samples)

    @property
    def num_by_class(self) -> NDArray[np.int64]:
        """[C] samples that are of the class."""
        counts: NDArray[np.int64] = self.confusion.sum(axis=1)
        return counts

    @property
    def recall(self) -> NDArray[np.float64]:
        """[C] of the samples of a class, the share that was found; NaN where there are none."""
        return _ratio(self.confusion.diagonal(), self.num_by_class)

    @property
    def precision(self) -> NDArray[np.float64]:
        """[C] of the predictions of a class, the share that is right.

        Never predicted: 0 for a class that there is (it was missed), NaN for one that there is not.
        """
        ratio = _ratio(self.confusion.diagonal(), self.confusion.sum(axis=0))
        return np.where(np.isnan(ratio) & (self.num_by_class > 0), 0.0, ratio)

    @property
    def macro_precision(self) -> float:
        """Mean over the classes that have samples."""
        return float(self.precision[self.num_by_class > 0].mean())

    @property
    def macro_recall(self) -> float:
        """Mean over the classes that have samples: accuracy if all classes counted the same."""
        return float(self.recall[self.num_by_class > 0].mean())


def score(predictions: Predictions) -> Scores:
    """Scores of at least one prediction."""
    num_classes = predictions.log_probabilities.shape[1]
    cells = predictions.labels * num_classes + predictions.predicted
    counts = np.bincount(cells, minlength=num_classes * num_classes)
    return Scores(counts.reshape(num_classes, num_classes))


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    ratio = np.full(len(whole), np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio
