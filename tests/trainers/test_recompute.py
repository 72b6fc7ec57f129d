from pathlib import Path

import pytest
import torch
from torch import nn

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import set_params, train_here
from trainers import models, weights
from trainers.recompute import recompute_blocks


def test_it_changes_no_bit_of_the_weights(project: Path, undisturbed: dict[str, bytes]) -> None:
    (project / "undisturbed").write_bytes(undisturbed["model.safetensors"])
    _, expected = weights.read(project / "undisturbed")
    set_params(project, gradient_checkpointing=True)
    _, found = weights.read(train_here(project) / "model.safetensors")
    assert weights.weights_sha256(found) == weights.weights_sha256(expected)
    assert found.keys() == expected.keys()


def test_blocks_keep_only_their_input() -> None:
    kept: list[int] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    def num_kept(model: nn.Module) -> int:
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(count, lambda it: it):
            model(torch.rand(4, 1, 16, 16))
        return sum(kept)

    plain, saving = (models.build("resnet18", (16, 16, 1), 3) for _ in range(2))
    recompute_blocks(saving)
    assert num_kept(saving) < num_kept(plain) / 3


def test_a_model_without_blocks_is_refused() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

    with pytest.raises(HeadraceError, match="no blocks") as caught:
        recompute_blocks(Flat())
    assert caught.value.found == "Flat of layer"
