"""A stage that drops more than it may says so, with reasons and examples."""

import pytest

from pipelines.core import budget, records
from pipelines.core.errors import HeadraceError

REASONS = ["blank", "truncated", "blank", "too_small", "blank"]
REJECTED = records.rejected_table(
    [
        {"key": f"k{number}", "path": f"{number}.jpg", "reason": reason, "detail": "why"}
        for number, reason in enumerate(REASONS)
    ],
    "clean",
)


def test_within_the_budget_reasons_are_counted() -> None:
    assert budget.hold("clean", REJECTED, 10, 0.5) == {"blank": 3, "too_small": 1, "truncated": 1}


def test_beyond_it_reasons_and_three_examples_are_named() -> None:
    with pytest.raises(HeadraceError, match="Stage clean rejected too many") as caught:
        budget.hold("clean", REJECTED, 10, 0.49)
    assert caught.value.where == "params.yaml:clean.max_rejected_fraction"
    assert caught.value.expected == "at most 49.00% of 10 samples"
    found = str(caught.value.found)
    assert found.startswith("5 (50.00%): blank 3, truncated 1, too_small 1; such as")
    assert [name in found for name in ("0.jpg", "1.jpg", "2.jpg", "3.jpg")] == [True] * 3 + [False]


def test_nothing_rejected_is_within_any_budget() -> None:
    assert budget.hold("clean", REJECTED.slice(0, 0), 0, 0.0) == {}
