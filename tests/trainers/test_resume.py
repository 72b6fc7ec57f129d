import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.trainers import runs
from tests.trainers.runs import NUM_STEPS, contents, set_params, train_here, train_there
from trainers.launch import EX_TEMPFAIL
from trainers.step import Outcome, Trainer


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException | None) -> None:
    """Have step `at` preceded by SIGTERM, or followed by `error` before anything notes it."""
    step = Trainer.step

    def interrupted(self: Trainer, position: Any, *args: Any, **kwargs: Any) -> Outcome:
        if position.step == at and error is None:
            os.kill(os.getpid(), signal.SIGTERM)
        outcome = step(self, position, *args, **kwargs)
        if position.step == at and error:
            raise error
        return outcome

    monkeypatch.setattr(Trainer, "step", interrupted)


@pytest.mark.parametrize("at", [0, 2, NUM_STEPS - 3])
def test_sigterm_saves_and_the_next_run_ends_as_if_undisturbed(
    project: Path, undisturbed: dict[str, bytes], at: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, at, None)
        with pytest.raises(SystemExit) as stopped:
            train_here(project, "stopped")
    assert stopped.value.code == EX_TEMPFAIL
    assert contents(train_here(project)) == undisturbed


def test_sigterm_in_the_last_step_lets_the_run_end(
    project: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, NUM_STEPS - 1, None)
    assert contents(train_here(project)) == undisturbed


@pytest.mark.parametrize("at", [1, 4, NUM_STEPS - 1])
def test_a_run_that_dies_within_a_step_ends_as_if_undisturbed(
    project: Path, undisturbed: dict[str, bytes], at: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, at, KeyError("died"))
        with pytest.raises(KeyError, match="died"):
            train_here(project, "died")
    assert contents(train_here(project)) == undisturbed


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "fp16"},
        {"optimizer": "adamw", "lr": 0.01, "num_accumulation_steps": 2},
        {"reduction": "ddp", "ema_decay": 0.0},
    ],
    ids=str,
)
def test_every_kind_of_state_comes_back_from_the_middle_of_an_epoch(
    project: Path, changes: dict[str, Any]
) -> None:
    set_params(project, **changes)
    undisturbed = contents(train_here(project, "whole"))
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, NUM_STEPS - 3, KeyError("died"))
        with pytest.raises(KeyError, match="died"):
            train_here(project, "died")
    assert list((project / ".state").glob("*/step-*[0-9]"))
    assert contents(train_here(project, "resumed")) == undisturbed


def test_another_learning_rate_never_resumes_this_ones_state(
    project: Path, undisturbed: dict[str, bytes]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, 3, None)
        with pytest.raises(SystemExit):
            train_here(project, "stopped")
    set_params(project, lr=0.01)
    train_here(project, "other")
    assert len(list((project / ".state").iterdir())) == 1
    set_params(project)
    assert contents(train_here(project)) == undisturbed


def test_the_interval_of_checkpoints_changes_no_byte(
    project: Path, undisturbed: dict[str, bytes]
) -> None:
    set_params(project, checkpoint_interval_s=1e6, num_checkpoints=1)
    assert contents(train_here(project)) == undisturbed


def test_a_resume_in_another_environment_is_said_aloud(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, 2, None)
        with pytest.raises(SystemExit):
            train_here(project, "stopped")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    train_here(project)
    assert any("variables.MKL_CBWR: none -> COMPATIBLE" in line for line in caplog.messages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "ranks"), [(signal.SIGTERM, 2), (signal.SIGKILL, 2), (signal.SIGINT, 1)]
)
def test_the_real_command_survives_signals_on_another_number_of_ranks(
    project: Path, undisturbed: dict[str, bytes], number: signal.Signals, ranks: int
) -> None:
    set_params(project, epochs=60)
    whole = contents(train_here(project, "whole"))
    process = runs.start(project, ranks)
    state = project / ".state"
    while not list(state.glob("*/step-*[0-9]")):
        assert process.poll() is None, process.communicate()[0]
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == (-9 if number == signal.SIGKILL else EX_TEMPFAIL), output
    assert list(state.glob("*/step-*[0-9]"))
    assert contents(train_there(project, 3 - ranks, "resumed")) == whole
