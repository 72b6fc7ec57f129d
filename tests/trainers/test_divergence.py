import math

import pytest

from pipelines.core.errors import HeadraceError
from trainers import divergence
from trainers.chain import Chain
from trainers.divergence import Budget, Undone, is_undone, num_skipped_in_row, rollback, skipped


def chain(num_steps: int, *bad: int) -> Chain:
    made = Chain()
    for step in range(num_steps):
        made.add(step, math.nan if step in bad else 0.5)
    return made


def test_steps_that_were_not_finite_are_counted_from_the_end() -> None:
    assert num_skipped_in_row(chain(0), ()) == 0
    assert num_skipped_in_row(chain(5, 0, 1), ()) == 0
    assert num_skipped_in_row(chain(5, 1, 3, 4), ()) == 2
    assert num_skipped_in_row(chain(3, 0, 1, 2), ()) == 3


def test_what_was_undone_counts_for_nothing() -> None:
    undone = (Undone(1, 4),)
    assert num_skipped_in_row(chain(6, 1, 2, 3, 4, 5), undone) == 2
    assert skipped(chain(6, 0, 1, 2, 3, 5), undone) == [0, 5]
    assert [is_undone(step, undone) for step in (0, 1, 3, 4)] == [False, True, True, False]


def test_within_the_budget_a_run_goes_on() -> None:
    assert rollback(chain(9, 7, 8), (), Budget(2, 1)) is None


@pytest.mark.parametrize(
    ("first_bad", "expected"), [(0, 0), (1, 0), (100, 0), (101, 100), (250, 200)]
)
def test_beyond_it_goes_back_to_a_step_before_the_first(first_bad: int, expected: int) -> None:
    bad = range(first_bad, first_bad + 3)
    undone = rollback(chain(first_bad + 3, *bad), (), Budget(2, 1))
    assert undone == Undone(expected, first_bad + 3)


def test_it_goes_back_further_each_time_that_this_did_not_help() -> None:
    undone: tuple[Undone, ...] = (Undone(300, 360),)
    found = rollback(chain(361, *range(300, 361)), undone, Budget(0, 9))
    assert found == Undone(200, 361)
    assert divergence.target(380, (*undone, found)) == 100
    assert divergence.target(470, (*undone, found)) == 400
    assert divergence.target(90, (Undone(0, 80),)) == 0


def test_a_run_that_has_used_up_its_budgets_fails_with_what_it_did() -> None:
    with pytest.raises(HeadraceError, match="Training diverged") as caught:
        rollback(chain(3, 2), (), Budget(0, 0))
    assert caught.value.where == "step 2 (from 0)"
    assert caught.value.found == "1 in a row that are not"
    with pytest.raises(HeadraceError, match="Training diverged") as caught:
        rollback(chain(130, 128, 129), (Undone(0, 20), Undone(100, 120)), Budget(1, 2))
    assert caught.value.where == "each of the steps 128 to 129 (from 0)"
    assert str(caught.value.found).endswith("the steps 0 to 19, 100 to 119 did not help")
