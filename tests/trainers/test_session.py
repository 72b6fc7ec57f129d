import pytest

from trainers.session import Schedule


def test_a_schedule_counts_steps_over_all_epochs() -> None:
    schedule = Schedule(
        num_epochs=3,
        num_steps_per_epoch=10,
        warmup_fraction=0.1,
        peak_learning_rate=0.5,
        checkpoint_interval_s=0,
    )
    assert schedule.num_steps == 30
    assert schedule.learning_rate(0) == pytest.approx(0.5 / 3)
    assert schedule.learning_rate(2) == 0.5
    assert schedule.learning_rate(29) < 0.01
