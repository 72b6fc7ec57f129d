import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.page import charts
from pipelines.core.page.charts import HEIGHT, WIDTH, Histogram, Scale, histogram, short


def chart(
    values: list[float], scale: Scale = "linear", bounds: tuple[float, float] | None = None
) -> Histogram:
    found = histogram("x", {"train": np.array(values, np.float32)}, scale, bounds)
    assert found is not None
    return found


def heights(outline: str) -> list[float]:
    """The height of each bin, 0..1, back from the path."""
    points = re.findall(r"L([\d.]+) ([\d.]+)", outline)
    return [1 - float(y) / HEIGHT for _, y in points[:-1:2]]


def shares(found: Histogram) -> float:
    """All shares of train that the bins tell, in percent."""
    return sum(float(re.findall(r"train ([\d.]+)%", it.text)[0]) for it in found.bins)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (1234.5, "1234"), (16170, "16.2k"), (2.5e7, "25M"), (-3, "-3")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_bins_hold_what_falls_into_them() -> None:
    found = chart([0, 0, 0, 255], bounds=(0, 255))
    tall = heights(found.outlines["train"])
    assert tall[0] == pytest.approx(1, abs=0.01)
    assert tall[-1] == pytest.approx(1 / 3, abs=0.01)
    assert sum(tall) == pytest.approx(4 / 3, abs=0.02)


def test_splits_are_drawn_as_shares_of_their_own() -> None:
    few, many = np.array([1.0, 2.0]), np.array([1.0, 2.0] * 50)
    found = histogram("x", {"train": many, "test": few}, "linear")
    assert found is not None
    assert found.outlines["train"] == found.outlines["test"]


def test_equal_values_make_no_chart() -> None:
    assert histogram("x", {"train": np.full(9, 28.0)}, "log") is None
    assert histogram("x", {"train": np.array([])}, "linear") is None


def test_an_empty_split_is_not_drawn() -> None:
    found = histogram("x", {"train": np.array([1.0, 2.0]), "val": np.array([])}, "linear")
    assert found is not None
    assert list(found.outlines) == ["train"]


def test_zero_has_a_place_on_a_logarithmic_axis() -> None:
    found = chart([0, 0, 10, 1000], "log")
    assert heights(found.outlines["train"])[0] > 0.9
    assert [tick.text for tick in found.ticks] == ["10", "100", "1000"]


def test_ticks_are_round_and_stand_where_their_value_is() -> None:
    found = chart([0, 255], bounds=(0, 255))
    assert [tick.text for tick in found.ticks] == ["0", "100", "200"]
    assert found.ticks[1].x == pytest.approx(WIDTH * 100 / 255, abs=0.1)


def test_quantiles_are_values_that_occur() -> None:
    found = chart([float(number) for number in range(101)])
    assert found.quantiles == {"1 %": "1", "median": "50", "99 %": "99"}


@pytest.mark.parametrize("scale", ["linear", "log"])
@given(values=st.lists(st.floats(0, 1e9, width=32), min_size=2, max_size=40, unique=True))
def test_every_value_is_in_one_bin(values: list[float], scale: Scale) -> None:
    found = histogram("x", {"train": np.array(values, np.float32)}, scale)
    if found is None:
        return
    assert shares(found) == pytest.approx(100, abs=0.06 * charts.NUM_BINS)
    assert found.bins[0].x == 0
    assert found.bins[-1].x + found.bins[-1].width == pytest.approx(WIDTH, abs=0.2)
    assert all(0 <= tick.x <= WIDTH for tick in found.ticks)
