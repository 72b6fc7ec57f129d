"""What becomes of a run whose loss or gradient is not finite: skip, go back, give up.

A step that is not finite changes nothing, and counts as skipped. More of them in a row than the
budget allows mean that not the data but the weights are bad: the run goes back to a step before the
first of them, and makes none of the steps from there to the last of them (as was done by hand for
PaLM: Chowdhery et al., 2022, section 5.1). The learning rate goes on by the number of the step.

All of this is a function of data, params and code. What is decided rests on sums that all ranks
share; the step to go back to is counted in steps, not in checkpoints, whose times depend on a
clock: an older checkpoint only takes longer to reach it.

A step that was not made stands in the run's chain with NaN for its loss, so `steps.parquet` tells
which ones these are; `lineage.json` names the samples of those that were not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.core.errors import HeadraceError
from trainers.chain import Chain

STEPS_APART = 100
"""A run goes back to a multiple of it."""


@dataclass(frozen=True)
class Budget:
    """How much a run may leave out."""

    num_skipped_in_row: int
    num_rollbacks: int


@dataclass(frozen=True)
class Undone:
    """Steps `first` to `end` - 1, which a run went back on."""

    first: int
    end: int

    def __contains__(self, step: int) -> bool:
        return self.first <= step < self.end


def is_undone(step: int, undone: Sequence[Undone]) -> bool:
    """Whether `step` is not to be made."""
    return any(step in span for span in undone)


def skipped(chain: Chain, undone: Sequence[Undone] = ()) -> list[int]:
    """The steps of `chain` that were not finite; of those that were undone, none."""
    return [
        step
        for step in range(chain.num_steps)
        if math.isnan(chain.link(step).loss) and not is_undone(step, undone)
    ]


def left_out(
    chain: Chain, undone: Sequence[Undone], keys: Callable[[int], list[str]]
) -> dict[str, Any]:
    """For the record of a run: the steps that were not made, if any, and the samples of bad ones.

    Args:
        chain: of the run.
        undone: steps that it went back on.
        keys: of the samples of a step.
    """
    steps = skipped(chain, undone)
    if not steps and not undone:
        return {}
    bad = {str(step): keys(step) for step in steps}
    return {"left_out": {"undone": [asdict(span) for span in undone], "not_finite": bad}}


def num_skipped_in_row(chain: Chain, undone: Sequence[Undone]) -> int:
    """How many steps at the end of `chain` were not finite."""
    last = chain.num_steps - 1
    step = last
    while step >= 0 and math.isnan(chain.link(step).loss) and not is_undone(step, undone):
        step -= 1
    return last - step


def rollback(chain: Chain, undone: Sequence[Undone], budget: Budget) -> Undone | None:
    """The steps to undo, if the budget of skipped ones is used up; None: go on.

    Raises:
        HeadraceError: so is that of rollbacks.
    """
    num_bad = num_skipped_in_row(chain, undone)
    if num_bad <= budget.num_skipped_in_row:
        return None
    first_bad = chain.num_steps - num_bad
    if len(undone) >= budget.num_rollbacks:
        raise _diverged(first_bad, num_bad, undone)
    return Undone(target(first_bad, undone), chain.num_steps)


def target(first_bad: int, undone: Sequence[Undone]) -> int:
    """The step to go back to if `first_bad` is the first that is not finite.

    It lies before what was undone without success, too.
    """
    step = _before(first_bad)
    while inside := [span.first for span in undone if step in span and span.first]:
        step = _before(min(inside))
    return step


def _before(step: int) -> int:
    return max(0, step - 1) // STEPS_APART * STEPS_APART


def _diverged(first_bad: int, num_bad: int, undone: Sequence[Undone]) -> HeadraceError:
    last = first_bad + num_bad - 1
    steps = f"step {first_bad}" if num_bad == 1 else f"each of the steps {first_bad} to {last}"
    spans = ", ".join(f"{span.first} to {span.end - 1}" for span in undone)
    before = f"; leaving out the steps {spans} did not help" if undone else ""
    return HeadraceError(
        "Training diverged: the loss or the gradient is not finite.",
        where=f"{steps} (from 0)",
        expected="finite numbers, within train.max_skipped_steps and train.max_rollbacks",
        found=f"{num_bad} in a row that are not{before}",
        fix="lower lr, raise warmup_fraction, set max_gradient_norm, or use precision: fp32",
    )
