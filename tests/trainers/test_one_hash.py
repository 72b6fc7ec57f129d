"""Proof that the hash of a run would show it if a resume lost a piece of the state."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.runs import NUM_STEPS, contents, set_params, train_here
from trainers import snapshot
from trainers.checkpoint import Loaded
from trainers.state import State
from trainers.step import Outcome, Trainer

ALL_ON = {
    "num_accumulation_steps": 2,
    "num_operations": 2,
    "mixup_probability": 0.3,
    "cutmix_probability": 0.3,
    "keep_every_steps": NUM_STEPS,
}
"""What `runs.PARAMS` leaves off; the last checkpoint stays, to be hashed with what a run writes."""
RESUMED_AFTER = 5

pytestmark = pytest.mark.slow


def digest(project: Path, out: Path) -> str:
    """SHA-256 of all that a run writes, and of its state after the last step."""
    (path,) = (project / ".state" / "finished").glob(f"*/step-*{NUM_STEPS}")
    _, tensors, meta = snapshot.read(path)
    del meta["environment"]  # tells the number of processes on a machine, and the like
    total = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name, data in sorted(contents(out).items()):
        total.update(name.encode() + hashlib.sha256(data).digest())
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()


def resumed(project: Path, lose: Callable[[State, Loaded], Loaded]) -> str:
    """The hash of a run that died, and whose resume got what `lose` made of the checkpoint."""
    step, restore = Trainer.step, State.restore

    def dying(self: Trainer, position: Any, *args: Any, **kwargs: Any) -> Outcome:
        if position.step == RESUMED_AFTER:
            raise KeyError("died")
        return step(self, position, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", dying)
        with pytest.raises(KeyError, match="died"):
            train_here(project, "died")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "restore", lambda self, loaded: restore(self, lose(self, loaded)))
        return digest(project, train_here(project, "resumed"))


def lose_nothing(_: State, loaded: Loaded) -> Loaded:
    return loaded


def lose_tensors(prefix: str) -> Callable[[State, Loaded], Loaded]:
    """The tensors below `prefix` are those of a fresh run, or none where it has none."""

    def lose(state: State, loaded: Loaded) -> Loaded:
        kept = {name: t for name, t in loaded.tensors.items() if not name.startswith(prefix)}
        fresh = {name: t for name, t in state.tensors().items() if name.startswith(prefix)}
        return replace(loaded, tensors=kept | fresh)

    return lose


def lose_scaler(state: State, loaded: Loaded) -> Loaded:
    return replace(loaded, meta=loaded.meta | {"scaler": state.scaler.state_dict()})


def lose_the_place_in_the_order(_: State, loaded: Loaded) -> Loaded:
    position = loaded.meta["position"]
    assert position["step"] == 1
    return replace(loaded, meta=loaded.meta | {"position": position | {"step": 0}})


@pytest.fixture
def whole(project: Path) -> str:
    """The hash of the undisturbed run, in the precision that has the most state."""
    set_params(project, precision="fp16", **ALL_ON)
    return digest(project, train_here(project, "whole"))


def test_a_resume_with_all_its_state_ends_in_the_hash(project: Path, whole: str) -> None:
    assert resumed(project, lose_nothing) == whole


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lose_tensors("model."), id="model"),
        pytest.param(lose_tensors("ema."), id="ema"),
        pytest.param(lose_tensors("optimizer."), id="optimizer"),
        pytest.param(lose_scaler, id="scaler"),
        pytest.param(lose_the_place_in_the_order, id="order"),
    ],
)
def test_a_resume_without_one_piece_of_state_ends_in_another_hash(
    project: Path, whole: str, lose: Callable[[State, Loaded], Loaded]
) -> None:
    assert resumed(project, lose) != whole


def test_a_resume_with_other_random_keys_ends_in_another_hash(project: Path, whole: str) -> None:
    step = Trainer.step

    def rekeyed(self: Trainer, position: Any, *args: Any, **kwargs: Any) -> Outcome:
        return step(self, position._replace(step=position.step - RESUMED_AFTER), *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:

        def lose(_: State, loaded: Loaded) -> Loaded:
            patch.setattr(Trainer, "step", rekeyed)
            return loaded

        assert resumed(project, lose) != whole
