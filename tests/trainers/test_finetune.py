import json
import logging
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import set_params, train_here
from trainers import models, weights
from trainers.finetune import freeze, load

SHAPE = (8, 8, 1)


def saved(path: Path, num_classes: int, **changes: torch.Tensor) -> Path:
    tensors = models.build("small", SHAPE, num_classes).state_dict() | changes
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return path


def test_weights_are_taken_and_a_head_of_another_size_stays_fresh(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path / "w.safetensors", 7)
    model = models.build("small", SHAPE, 3)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with caplog.at_level(logging.INFO, "headrace.train"):
        load(model, path)
    kept = models.build("small", SHAPE, 7)
    load(kept, path)
    for name, tensor in model.state_dict().items():
        is_head = name.startswith("13.")
        assert torch.equal(tensor, fresh[name] if is_head else kept.state_dict()[name])
    assert "of another shape there, and so fresh: 13.weight ([7, 64], here [3, 64])" in (
        caplog.text.replace("576", "64")
    )


def test_files_that_do_not_fit_are_told(tmp_path: Path) -> None:
    model = models.build("small", SHAPE, 3)
    with pytest.raises(HeadraceError, match="cannot be read"):
        load(model, tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(HeadraceError, match="cannot be read"):
        load(model, tmp_path / "bad.safetensors")
    save_file({"layer.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(HeadraceError, match="of another model") as caught:
        load(model, tmp_path / "other.safetensors")
    assert "0.weight" in str(caught.value.expected)
    other = {name: torch.zeros(1, 1) for name, _ in model.named_parameters()}
    with pytest.raises(HeadraceError, match="No weight of the file has the shape"):
        load(model, saved(tmp_path / "shapes.safetensors", 3, **other))


def test_frozen_layers_keep_parameters_and_statistics_in_every_mode() -> None:
    model = models.build("small", SHAPE, 3)
    freeze(model, ["0.*", "1.*"])
    assert not model.get_parameter("0.weight").requires_grad
    assert model.get_parameter("3.weight").requires_grad
    assert isinstance(model, nn.Sequential)
    for it in (model, deepcopy(model)):
        it.eval()
        it.train()
        modes = [module.training for module in it]
        assert modes[:4] == [False, False, True, True]
        it(torch.rand(4, 1, 8, 8))
        assert torch.equal(it.get_buffer("1.running_mean"), torch.zeros(16))
        assert not torch.equal(it.get_buffer("4.running_mean"), torch.zeros(32))


def test_a_pattern_without_a_parameter_is_refused_with_the_nearest() -> None:
    with pytest.raises(HeadraceError, match=r"Did you mean '13\.weight'"):
        freeze(models.build("small", SHAPE, 3), ["13.weights"])


def test_a_run_begins_with_the_weights_of_another_and_leaves_frozen_ones(
    project: Path, finished: Path
) -> None:
    path = "runs/train/model.safetensors"
    set_params(project, pretrained=path, freeze=["[0-9].*"])
    out = train_here(project)
    _, begun = weights.read(finished / "model.safetensors")
    about, ended = weights.read(out / "model.safetensors")
    for name, tensor in ended.items():
        assert torch.equal(tensor, begun[name]) is (not name.startswith("13.")), name
    assert about.params["freeze"] == ["[0-9].*"]
    assert f"pretrained:{path}" in about.code
    set_params(project, pretrained=path)
    assert json.loads((train_here(project, "all") / "lineage.json").read_text())["code"]
