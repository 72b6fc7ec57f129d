from pathlib import Path

import pytest
import torch
from torch import nn

from pipelines.core.errors import HeadraceError
from trainers import optim
from trainers.checkpoint import Checkpoints
from trainers.reader import order
from trainers.state import State


def make(version: str = "v1", kind: str = "adamw", seed: int = 0) -> State:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return State(
        model,
        optim.averaged(model, 0.9),
        optim.build(model, kind, momentum=0.9, weight_decay=0.1),  # type: ignore[arg-type]
        torch.amp.GradScaler("cpu"),
        order.State(version, 1, 0, 0),
    )


def advance(state: State) -> None:
    optim.set_learning_rate(state.optimizer, 0.1)
    state.optimizer.zero_grad()
    state.scaler.scale(state.model(torch.arange(6.0).view(2, 3)).square().sum()).backward()
    state.optimizer.step()
    state.ema.update_parameters(state.model)
    state.scaler.update(2.0**10)
    state.chain.add(7, 0.1, "ab" * 32)
    state.history.current.add(2, 0.1, 1)
    state.position = order.State(state.position.version, 1, 0, state.position.step + 1)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_restored_state_is_equal_and_goes_on_equally(tmp_path: Path, kind: str) -> None:
    state = make(kind=kind)
    advance(state)
    with Checkpoints(tmp_path / "run", keep_last=1) as saves:
        saves.save(1, state.tensors(), state.meta({}))
        loaded = saves.newest()
    assert loaded is not None
    other = make(kind=kind, seed=5)
    other.restore(loaded)
    for _ in range(2):
        assert other.tensors().keys() == state.tensors().keys()
        for name, tensor in state.tensors().items():
            assert torch.equal(tensor, other.tensors()[name]), name
        assert other.meta({}) == state.meta({})
        advance(state)
        advance(other)


def test_a_state_of_other_data_is_refused(tmp_path: Path) -> None:
    state = make("v1")
    advance(state)
    with Checkpoints(tmp_path / "run", keep_last=1) as saves:
        saves.save(1, state.tensors(), state.meta({}))
        loaded = saves.newest()
    assert loaded is not None
    with pytest.raises(HeadraceError, match=r"(?s)v1.*v2"):
        make("v2").restore(loaded)
