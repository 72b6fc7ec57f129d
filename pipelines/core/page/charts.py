"""Charts as numbers: the template of the page draws them as SVG.

Bin edges are rounded to four digits before anything is counted, so that the last bit of a logarithm
(which differs between processors) moves no sample from one bin to the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 320, 120
"""Of the drawing area, in units of the SVG."""
NUM_BINS = 32
_NUM_TICKS = 4
_MAX_DECADES = 5

Scale = Literal["linear", "log"]


@dataclass(frozen=True)
class Tick:
    """A place on the x axis, and what is written there."""

    x: float
    text: str


@dataclass(frozen=True)
class Bin:
    """A column of the chart, for the pointer to find.

    Attributes:
        x: its left edge.
        width: of it.
        text: its range, and each split's share.
    """

    x: float
    width: float
    text: str


@dataclass(frozen=True)
class Histogram:
    """The distribution of a measure, each split by itself.

    Attributes:
        title: what is measured, with its unit.
        outlines: SVG paths by split, closed along the x axis.
        bins: from left to right.
        ticks: of the x axis.
        quantiles: value by share of the samples, as text.
    """

    title: str
    outlines: Mapping[str, str]
    bins: tuple[Bin, ...]
    ticks: tuple[Tick, ...]
    quantiles: Mapping[str, str]


def short(value: float) -> str:
    """A number in few characters: 1,234.5 as 1235, 16,170 as 16.2k."""
    for limit, letter in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e6 if letter == 'M' else 1e3):.3g}{letter}"
    return f"{value:.4g}"


def histogram(
    title: str,
    values: Mapping[str, npt.NDArray[Any]],
    scale: Scale,
    bounds: tuple[float, float] | None = None,
) -> Histogram | None:
    """The chart of a measure; None where all values are equal, or there are none.

    Args:
        title: what is measured.
        values: by split, [N] of any length.
        scale: of the x axis; on a logarithmic one what is not positive counts as the least that is.
        bounds: of the x axis, where the measure has natural ones; otherwise those of the values.
    """
    whole = np.sort(np.concatenate([*values.values(), np.empty(0, np.float32)]))
    if not len(whole) or whole[0] == whole[-1]:
        return None
    edges = _edges(whole, scale, bounds)
    shares = {split: _shares(own, edges) for split, own in values.items() if len(own)}
    top = max(float(share.max()) for share in shares.values())
    xs = WIDTH * np.array([_place(edge, edges, scale) for edge in edges])
    return Histogram(
        title=title,
        outlines={split: _outline(xs, share / top) for split, share in shares.items()},
        bins=tuple(_bins(xs, edges, shares)),
        ticks=tuple(_ticks(edges, scale)),
        quantiles={
            name: short(float(whole[round(share * (len(whole) - 1))]))
            for name, share in {"1 %": 0.01, "median": 0.5, "99 %": 0.99}.items()
        },
    )


def _edges(
    whole: npt.NDArray[Any], scale: Scale, bounds: tuple[float, float] | None
) -> npt.NDArray[np.float64]:
    """NUM_BINS + 1 rising edges, or fewer where rounding makes them equal."""
    low, high = bounds or (float(whole[0]), float(whole[-1]))
    if scale == "log":
        positive = whole[whole > 0]
        low = max(float(positive[0]), high / 10**_MAX_DECADES)
        low = low if low < high else high / 10
        edges = np.geomspace(low, high, NUM_BINS + 1)
    else:
        edges = np.linspace(low, high, NUM_BINS + 1)
    return np.unique([float(f"{edge:.4g}") for edge in edges])


def _shares(values: npt.NDArray[Any], edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The share of the values in each bin; what lies beyond the edges is in the outer bins."""
    inside = np.clip(values.astype(np.float64), edges[0], edges[-1])
    shares: npt.NDArray[np.float64] = np.histogram(inside, edges)[0] / len(values)
    return shares


def _outline(xs: npt.NDArray[np.float64], heights: npt.NDArray[np.float64]) -> str:
    """Steps over the bins; `heights` 0..1."""
    parts = [f"M0 {HEIGHT}"]
    for left, right, height in zip(xs[:-1], xs[1:], heights, strict=True):
        y = HEIGHT * (1 - height)
        parts.append(f"L{left:.1f} {y:.1f}L{right:.1f} {y:.1f}")
    return "".join([*parts, f"L{WIDTH} {HEIGHT}Z"])


def _bins(
    xs: npt.NDArray[np.float64],
    edges: npt.NDArray[np.float64],
    shares: Mapping[str, npt.NDArray[np.float64]],
) -> list[Bin]:
    found = []
    for at in range(len(edges) - 1):
        told = ", ".join(f"{split} {share[at]:.1%}" for split, share in shares.items())
        text = f"{short(edges[at])} to {short(edges[at + 1])}: {told}"
        found.append(Bin(round(xs[at], 1), round(xs[at + 1] - xs[at], 1), text))
    return found


def _ticks(edges: npt.NDArray[np.float64], scale: Scale) -> list[Tick]:
    low, high = float(edges[0]), float(edges[-1])
    values = _round_values(low, high) if scale == "linear" else _round_powers(low, high)
    return [Tick(round(WIDTH * _place(value, edges, scale), 1), short(value)) for value in values]


def _place(value: float, edges: npt.NDArray[np.float64], scale: Scale) -> float:
    """Where on the x axis a value stands, 0..1."""
    low, high = float(edges[0]), float(edges[-1])
    if scale == "linear":
        return (value - low) / (high - low)
    return math.log(value / low) / math.log(high / low)


def _round_values(low: float, high: float) -> list[float]:
    """About _NUM_TICKS multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{number * step:.6g}") for number in range(first, last + 1)]


def _round_powers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; over more than two decades the powers alone.

    Where at most one of them fits, both ends.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 100 else (1,)
    values = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
    inside = [value for value in values if low <= value <= high]
    return inside if len(inside) > 1 else [low, high]
