"""How far two splits differ, column by column, beside how far they would by chance alone.

Numbers by the Kolmogorov-Smirnov distance: the greatest difference of their two distribution
functions. Names (labels, formats) by the total variation distance: half the sum of the differences
of their shares. Both are 0 for equal distributions and 1 for disjoint ones. What chance alone gives
follows from the sizes of the splits, by the limit laws for splits that are drawn from one
distribution. A drift is notable where a test at the level of 0.5 % says that they are not: that of
Kolmogorov and Smirnov for numbers, the chi-square test of homogeneity for names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_MEAN_KOLMOGOROV = math.sqrt(math.pi / 2) * math.log(2)
"""Mean of the Kolmogorov distribution."""
_QUANTILE_KOLMOGOROV = 1.7308
"""It is passed with a probability of 0.5 %."""
_QUANTILE_NORMAL = 2.5758
"""The same of the normal distribution."""


@dataclass(frozen=True)
class Drift:
    """The distance of a split from another in one column.

    Attributes:
        column: its name.
        distance: 0..1.
        chance: its mean if both splits were drawn from one distribution.
        is_notable: whether chance alone hardly explains it; it does so in one of 200 columns.
    """

    column: str
    distance: float
    chance: float
    is_notable: bool


def of_numbers(column: str, one: npt.NDArray[Any], other: npt.NDArray[Any]) -> Drift | None:
    """The drift of a column of numbers; None where a split is empty.

    Args:
        column: its name.
        one: values of a split, [N] in any order.
        other: values of another, [M].
    """
    if not len(one) or not len(other):
        return None
    first, second = np.sort(one), np.sort(other)
    points = np.concatenate([first, second])
    shares = [
        np.searchsorted(values, points, side="right") / len(values) for values in (first, second)
    ]
    distance = float(np.abs(shares[0] - shares[1]).max())
    scale = math.sqrt(1 / len(one) + 1 / len(other))
    is_notable = distance > _QUANTILE_KOLMOGOROV * scale
    return Drift(column, distance, min(_MEAN_KOLMOGOROV * scale, 1.0), is_notable)


def of_counts(column: str, one: npt.NDArray[Any], other: npt.NDArray[Any]) -> Drift | None:
    """The drift of a column of names; None where a split is empty.

    Args:
        column: its name.
        one: how often each name occurs in a split, [K].
        other: the same of another split, [K], in the same order.
    """
    if not one.sum() or not other.sum():
        return None
    distance = float(np.abs(one / one.sum() - other / other.sum()).sum() / 2)
    pooled = (one + other) / (one.sum() + other.sum())
    scale = 1 / one.sum() + 1 / other.sum()
    # The mean of |x| of a normal x is sqrt(2 / pi) of its deviation.
    chance = float(np.sqrt(pooled * (1 - pooled) * scale).sum()) * math.sqrt(2 / math.pi) / 2
    return Drift(column, distance, min(chance, 1.0), _differ(one, other, pooled, float(scale)))


def _differ(
    one: npt.NDArray[Any], other: npt.NDArray[Any], pooled: npt.NDArray[Any], scale: float
) -> bool:
    """The chi-square test of homogeneity; its quantile by Wilson and Hilferty (PNAS 1931)."""
    occurs = pooled > 0
    freedom = int(occurs.sum()) - 1
    if not freedom:
        return False
    difference = (one / one.sum() - other / other.sum())[occurs]
    statistic = float((difference**2 / pooled[occurs]).sum()) / scale
    part = 2 / (9 * freedom)
    return statistic > freedom * (1 - part + _QUANTILE_NORMAL * math.sqrt(part)) ** 3
