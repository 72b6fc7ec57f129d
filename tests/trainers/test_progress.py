import logging

import pytest

from trainers.progress import Progress


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands until a test moves it."""
    clock = [100.0]
    monkeypatch.setattr("trainers.progress.time.monotonic", lambda: clock[0])
    return clock


def test_lines_tell_loss_pace_wait_and_time_left(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    shown = Progress(10, 0, is_shown=True)
    with caplog.at_level(logging.INFO, "headrace.train"):
        with shown.waiting():
            now[0] += 3
        now[0] += 9
        shown.advance(48, 1.25)
        shown.advance(48, 1.0)
    shown.close()
    assert caplog.messages == ["step 1/10: loss 1.2500, 4 samples/s, data wait 25%, 1:48 left"]


def test_time_left_counts_from_where_a_run_resumed(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    shown = Progress(10, 8, is_shown=True)
    now[0] += 20
    with caplog.at_level(logging.INFO, "headrace.train"):
        shown.advance(48, 1.0)
    assert caplog.messages[0].endswith("0:20 left")


def test_a_run_that_goes_back_counts_again_from_there(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    shown = Progress(10, 0, is_shown=True)
    with caplog.at_level(logging.INFO, "headrace.train"):
        shown.advance(48, 1.0)
        shown.advance(48, 1.0)
        shown.go_back(1)
        now[0] += 20
        shown.advance(48, 1.0)
    assert caplog.messages[0].startswith("step 2/10:")


def test_epochs_are_told_by_one_rank_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headrace.train"):
        Progress(10, 0, is_shown=False).end_epoch(1, 2, {"train/loss": 0.5})
        assert caplog.messages == []
        Progress(10, 0, is_shown=True).end_epoch(1, 2, {"train/loss": 0.5})
    assert caplog.messages[0].startswith("epoch 1/2: train/loss 0.5000 (")
