from pathlib import Path
from typing import Any

import pytest

from pipelines.core import params
from pipelines.core.errors import HeadraceError
from tests.decoded import write_decoded
from tests.trainers.runs import set_params, train_here
from trainers import train
from trainers.prepare import training_plan
from trainers.reader.index import open_index


def test_a_split_smaller_than_a_batch_fills_it_and_others_drop_their_tail(
    project: Path, tmp_path: Path
) -> None:
    config = params.load(train.Params, "train")
    assert training_plan(config, open_index(project / "decoded")).tail == "drop"
    write_decoded(tmp_path / "tiny", splits={"train": [9]}, shape=(12, 12, 1), num_classes=4)
    assert training_plan(config, open_index(tmp_path / "tiny")).tail == "wrap"


NETS = {
    "frozen": "net = nn.Sequential(nn.Flatten(), nn.Linear(144, n)).requires_grad_(False)",
    "empty": "net = nn.Sequential(nn.AdaptiveAvgPool2d((1, n)), nn.Flatten())",
    "unused": "net = nn.Sequential(nn.Flatten(), nn.Linear(144, n)); net[1].extra = weight",
}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("frozen", "no trainable parameter"),
        ("empty", "no trainable parameter"),
        ("unused", "does not depend on some parameters"),
    ],
)
def test_a_model_that_cannot_be_trained_is_told_in_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    (project / f"{name}_net.py").write_text(
        "import torch\nfrom torch import nn\nweight = nn.Parameter(torch.zeros(2))\n"
        f"def build(shape, n):\n    {NETS[name]}\n    return net\n"
    )
    monkeypatch.syspath_prepend(project)
    set_params(project, model=f"{name}_net:build")
    with pytest.raises(HeadraceError, match=what):
        train_here(project)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 18}, r"batch_size a multiple of num_logical_workers \* num_accumulation"),
        ({"num_accumulation_steps": 3}, r"4 \* 3 = 12"),
        ({"model": "resnet_18"}, "Did you mean 'resnet18'"),
        ({"lr": 1e30, "warmup_fraction": 0.0}, "diverged"),
    ],
)
def test_bad_settings_are_told_in_one_error(
    project: Path, changes: dict[str, Any], message: str
) -> None:
    set_params(project, **changes)
    with pytest.raises(HeadraceError, match=message):
        train_here(project)
