"""Outliers: samples that are odd beside the others of their dataset.

Each measure is made so that more is odder, and set against the dataset's own distribution by the
robust z-score: (value - median) / (1.4826 * median absolute deviation), or the mean absolute
deviation times 1.2533 in its place where half of the values are equal (Iglewicz and Hoaglin, "How
to Detect and Handle Outliers", 1993, who call 3.5 and more an outlier of a normal distribution).

The distribution is of all samples that no other threshold dropped. So data that are added can make
an outlier of an old sample, or of an outlier a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipelines.core.images.features import Features
from pipelines.core.report import Report

Values: TypeAlias = npt.NDArray[np.float64]
Columns: TypeAlias = Mapping[str, Values]
COLUMN_NAMES = ("width", "height", "sharpness", "brightness", "contrast")
LEVELS = (3, 4, 5, 6, 8, 10)
"""Scores of which the report counts how many samples are beyond, to choose a threshold by."""


@dataclass(frozen=True)
class MaxScores:
    """The largest robust z-score that may stay, by measure; None: any may."""

    blur: float | None = None
    darkness: float | None = None
    low_information: float | None = None
    size: float | None = None
    aspect: float | None = None


MEASURES: Mapping[str, Callable[[Columns], Values]] = {
    "blur": lambda of: -np.log2(of["sharpness"] + 1),
    "darkness": lambda of: -of["brightness"],
    "low_information": lambda of: -of["contrast"],
    "size": lambda of: np.log2(of["width"]) + np.log2(of["height"]),
    "aspect": lambda of: np.abs(np.log2(of["width"]) - np.log2(of["height"])),
}
"""By name of the field of MaxScores; more is odder, and of the size less is, too."""
_TWO_SIDED = ("size",)


def columns_of(seen: Sequence[Features]) -> dict[str, Values]:
    """What `scores_of` takes, of looks at images that decode."""
    return {name: np.array([getattr(it, name) for it in seen], np.float64) for name in COLUMN_NAMES}


def scores_of(columns: Columns) -> dict[str, Values]:
    """The robust z-scores by measure, [N] each; all zero where all values are equal.

    Args:
        columns: features by name (COLUMN_NAMES), [N] each; no width or height is 0.
    """
    found = {}
    for name, measure in MEASURES.items():
        score = robust_z(measure(columns))
        found[name] = np.abs(score) if name in _TWO_SIDED else score
    return found


def robust_z(values: Values) -> Values:
    """Distances from the median, in robust standard deviations; [N]."""
    if not len(values):
        return values
    away = values - np.median(values)
    scale = 1.4826 * np.median(np.abs(away)) or 1.2533 * np.mean(np.abs(away)) or 1.0
    scored: Values = away / scale
    return scored


def find(scores: Mapping[str, Values], limits: MaxScores) -> dict[int, str]:
    """The detail of each sample that is beyond a limit, by its row."""
    found: dict[int, str] = {}
    for name, score in scores.items():
        limit: float | None = getattr(limits, name)
        for row in [] if limit is None else np.flatnonzero(score > limit).tolist():
            found.setdefault(row, f"{name} has z {score[row]:.3g}, at most {limit:g} wanted")
    return found


def summary(scores: Mapping[str, Values]) -> Report:
    """How many samples are beyond each of LEVELS, and the largest score, by measure."""
    return {
        name: {
            "max_z": float(score.max(initial=0)),
            "num_beyond": {f"z_{level:02d}": int((score > level).sum()) for level in LEVELS},
        }
        for name, score in scores.items()
    }
