import itertools

import pytest

from trainers.divergence import Budget
from trainers.schedule import Schedule


def test_a_schedule_counts_steps_over_all_epochs() -> None:
    schedule = Schedule(
        num_epochs=3,
        num_steps_per_epoch=10,
        warmup_fraction=0.1,
        peak_learning_rate=0.5,
        checkpoint_interval_s=0,
        budget=Budget(0, 0),
        patience_epochs=0,
        keeps_best=False,
    )
    assert schedule.num_steps == 30
    assert schedule.learning_rate(0) == pytest.approx(0.5 / 3)
    assert schedule.learning_rate(2) == 0.5
    assert schedule.learning_rate(29) < 0.01


def schedule(num_steps: int, patience_epochs: int = 0) -> Schedule:
    return Schedule(1, num_steps, 0.0, 0.1, 0, Budget(0, 0), patience_epochs, keeps_best=False)


@pytest.mark.parametrize("num_steps", [1, 8, 32, 33, 1000, 1_000_003])
def test_the_weights_are_digested_evenly_at_most_32_times_and_at_the_end(num_steps: int) -> None:
    taken = [step for step in range(num_steps) if schedule(num_steps).takes_weights_digest(step)]
    assert taken[-1] == num_steps - 1
    assert min(num_steps, 16) <= len(taken) <= 32
    assert len({after - before for before, after in itertools.pairwise(taken[:-1])}) <= 1


def test_patience_ends_after_so_many_epochs_without_a_better_one() -> None:
    patient = schedule(10, patience_epochs=2)
    assert not patient.is_out_of_patience(-1, 0)
    assert [patient.is_out_of_patience(1, num) for num in (2, 3, 4)] == [False, False, True]
    assert not schedule(10).is_out_of_patience(0, 9)
