"""Runs whose numbers stop being finite: bad data, and weights that go bad."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.core.errors import HeadraceError
from tests.decoded import write_decoded
from tests.trainers.runs import NUM_STEPS, contents, set_params, train_here, train_there
from trainers import divergence, optim, weights
from trainers.chain import Chain
from trainers.commands import verify
from trainers.divergence import skipped
from trainers.step import Outcome, Trainer


@pytest.fixture
def bad_steps(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Steps whose learning rate is infinite where they are made: their weights go bad."""
    bad: set[int] = set()
    step = Trainer.step

    def made(self: Trainer, at: Any, *args: Any, **named: Any) -> Outcome:
        if at.step in bad:
            optim.set_learning_rate(self.optimizer, float("inf"))
        return step(self, at, *args, **named)

    monkeypatch.setattr(Trainer, "step", made)
    monkeypatch.setattr(divergence, "STEPS_APART", 2)
    return bad


@pytest.fixture
def bad_data(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Steps whose loss is not finite, whatever the weights."""
    bad: set[int] = set()
    step = Trainer.step

    def made(self: Trainer, at: Any, *args: Any, **named: Any) -> Outcome:
        if at.step not in bad:
            return step(self, at, *args, **named)
        weight = next(self.model.parameters())
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(float("nan"))
        outcome = step(self, at, *args, **named)
        with torch.no_grad():
            weight.copy_(kept)
        return outcome

    monkeypatch.setattr(Trainer, "step", made)
    return bad


def steps_of(out: Path) -> Chain:
    return Chain.read(out / "steps.parquet")


def left_out(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "lineage.json").read_text())["left_out"]
    return found


def test_a_bad_batch_is_skipped_and_its_samples_are_written_down(
    project: Path, bad_data: set[int]
) -> None:
    bad_data.add(5)
    set_params(project, max_skipped_steps=1)
    out = train_here(project)
    assert skipped(steps_of(out)) == [5]
    record = left_out(out)
    assert record["undone"] == []
    assert list(record["not_finite"]) == ["5"]
    assert len(record["not_finite"]["5"]) == 16
    assert all(key.startswith("train/") for key in record["not_finite"]["5"])
    loss = json.loads((out / "metrics.json").read_text())["train"]["loss"]
    assert loss == pytest.approx(loss)  # no NaN


def test_without_a_budget_the_first_bad_step_fails_the_run(
    project: Path, bad_data: set[int]
) -> None:
    bad_data.add(5)
    with pytest.raises(HeadraceError, match="diverged") as caught:
        train_here(project)
    assert caught.value.where == "step 5 (from 0)"


def test_bad_weights_send_the_run_back_and_what_led_there_is_left_out(
    project: Path, bad_steps: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    bad_steps.add(3)
    set_params(project, max_skipped_steps=1, max_rollbacks=1)
    out = train_here(project)
    assert left_out(out) == {"undone": [{"first": 2, "end": 6}], "not_finite": {}}
    assert skipped(steps_of(out)) == [2, 3, 4, 5]
    assert "WENT BACK to step 2, from which steps 2 to 5 are left out" in caplog.text


@pytest.mark.parametrize("interval_s", [0.0, 1e6])
@pytest.mark.parametrize("stop_at", [2, 3, 4, 5])
def test_neither_kills_nor_checkpoints_change_a_run_that_goes_back(
    project: Path, bad_steps: set[int], interval_s: float, stop_at: int
) -> None:
    bad_steps.add(3)
    set_params(project, max_skipped_steps=1, max_rollbacks=1)
    whole = contents(train_here(project, "whole"))
    set_params(project, max_skipped_steps=1, max_rollbacks=1, checkpoint_interval_s=interval_s)
    with pytest.MonkeyPatch.context() as patch:
        step = Trainer.step

        def stopped(self: Trainer, at: Any, *args: Any, **named: Any) -> Outcome:
            if at.step == stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(self, at, *args, **named)

        patch.setattr(Trainer, "step", stopped)
        with pytest.raises(SystemExit):
            train_here(project, "stopped")
    assert contents(train_here(project)) == whole


def test_a_run_that_went_back_is_verified(
    project: Path, bad_steps: set[int], capsys: pytest.CaptureFixture[str]
) -> None:
    bad_steps.add(3)
    set_params(project, max_skipped_steps=1, max_rollbacks=1)
    out = train_here(project)
    bad_steps.clear()
    assert verify.main([str(out), "--data", "decoded"]) == 0
    assert "EQUAL" in capsys.readouterr().out


def test_going_back_to_the_first_step_needs_no_checkpoint(
    project: Path, bad_steps: set[int]
) -> None:
    bad_steps.add(0)
    set_params(project, max_skipped_steps=0, max_rollbacks=1, checkpoint_interval_s=1e6)
    out = train_here(project)
    assert left_out(out)["undone"] == [{"first": 0, "end": 2}]
    assert steps_of(out).num_steps == NUM_STEPS


def test_going_back_too_often_fails_the_run(project: Path, bad_steps: set[int]) -> None:
    bad_steps.update({3, 6})
    set_params(project, max_skipped_steps=0, max_rollbacks=1)
    with pytest.raises(HeadraceError, match="diverged") as caught:
        train_here(project)
    assert "leaving out the steps 2 to 4 did not help" in str(caught.value.found)


@pytest.fixture
def accuracies(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What each validation finds, over and over."""
    found = [0.1, 0.4, 0.2, 0.3]

    def validated(model: Any, reader: Any, *_: Any) -> dict[str, float]:
        return {"loss": 1.0, "accuracy": found[int(model_step(model)) // 4 - 1]}

    def model_step(model: Any) -> int:
        return int(model.state_dict()["1.num_batches_tracked"])

    monkeypatch.setattr("trainers.session.validate", validated)
    return found


@pytest.mark.usefixtures("accuracies")
def test_the_best_epoch_is_kept_through_kills_and_verified(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_params(project, epochs=4, result="best")
    out = train_here(project)
    set_params(project, epochs=4)
    _, last = weights.read(train_here(project, "last") / "model.safetensors")
    _, best = weights.read(out / "model.safetensors")
    assert int(best["1.num_batches_tracked"]) == 8
    assert int(last["1.num_batches_tracked"]) == 16
    assert verify.main([str(out), "--data", "decoded"]) == 0
    assert "EQUAL" in capsys.readouterr().out
    set_params(project, epochs=4, result="best")
    with pytest.MonkeyPatch.context() as patch:
        step = Trainer.step

        def stopped(self: Trainer, at: Any, *args: Any, **named: Any) -> Outcome:
            if at.step == 11:
                os.kill(os.getpid(), signal.SIGTERM)
            return step(self, at, *args, **named)

        patch.setattr(Trainer, "step", stopped)
        with pytest.raises(SystemExit):
            train_here(project, "stopped")
    assert contents(train_here(project, "resumed")) == contents(out)


@pytest.mark.usefixtures("accuracies")
def test_a_run_out_of_patience_ends_and_is_verified(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_params(project, epochs=9, patience_epochs=1)
    out = train_here(project)
    assert steps_of(out).num_steps == 3 * 4
    assert json.loads((out / "metrics.json").read_text())["val"]["accuracy"] == 0.2
    assert verify.main([str(out), "--data", "decoded"]) == 0
    assert "every tensor of the weights file" in capsys.readouterr().out


@pytest.mark.parametrize("changes", [{"result": "best"}, {"patience_epochs": 1}])
def test_without_a_val_split_there_is_no_best_epoch(project: Path, changes: dict[str, Any]) -> None:
    (project / "decoded").unlink()
    write_decoded(project / "decoded", splits={"train": [30]}, shape=(12, 12, 1), num_classes=4)
    set_params(project, **changes)
    with pytest.raises(HeadraceError, match="Without a split val"):
        train_here(project)


@pytest.mark.slow
def test_a_compiled_model_learns_the_same(project: Path) -> None:
    losses = []
    for compiles in (False, True):
        set_params(project, compile=compiles)
        out = train_there(project, 1, str(compiles))
        losses.append(steps_of(out).link(NUM_STEPS - 1).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
