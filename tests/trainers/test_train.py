import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.core.errors import HeadraceError
from tests.decoded import draw, write_decoded
from tests.servers import serve_web
from tests.trainers import runs
from tests.trainers.runs import NUM_STEPS, contents, set_params, train_here, train_there
from trainers import models, weights
from trainers.chain import Chain
from trainers.session import Session


def test_a_run_writes_weights_metrics_plots_and_lineage(
    project: Path, undisturbed: dict[str, bytes]
) -> None:
    plots = {
        f"plots/metrics/{split}/{name}.tsv"
        for split in ("train", "val")
        for name in ("accuracy", "loss")
    }
    names = {
        "model.safetensors",
        "metrics.json",
        "lineage.json",
        "steps.parquet",
        "plots/metrics/learning_rate.tsv",
    }
    assert set(undisturbed) == names | plots
    (project / "model.safetensors").write_bytes(undisturbed["model.safetensors"])
    about, tensors = weights.read(project / "model.safetensors")
    assert (about.model, about.shape, about.params["lr"]) == ("small", (12, 12, 1), 0.05)
    models.build(about.model, about.shape, len(about.labels)).load_state_dict(tensors)
    lineage = json.loads(undisturbed["lineage.json"])
    assert lineage["chain"]["num_steps"] == NUM_STEPS
    for name in ("dataset_version", "params", "seeds", "code", "environment", "chain"):
        assert lineage[name] == getattr(about, name)
    (project / "steps.parquet").write_bytes(undisturbed["steps.parquet"])
    chain = Chain.read(project / "steps.parquet")
    assert chain.summary() == lineage["chain"]
    assert all(chain.link(step).weights for step in range(NUM_STEPS))
    assert "trainers/train.py" in lineage["code"]


def test_the_same_run_again_writes_the_same_bytes(
    project: Path, undisturbed: dict[str, bytes]
) -> None:
    assert contents(train_here(project)) == undisturbed
    assert list((project / ".state").iterdir()) == []


def test_two_ranks_of_the_real_command_write_the_bytes_of_one(
    project: Path, undisturbed: dict[str, bytes]
) -> None:
    assert contents(train_there(project, num_ranks=2)) == undisturbed


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"precision": "tf32"},
        {"reduction": "ddp"},
        {"num_accumulation_steps": 2},
        {"optimizer": "adamw", "lr": 0.01},
        {"ema_decay": 0.0, "max_gradient_norm": 0.0},
        {"batch_size": 128, "num_logical_workers": 4},
    ],
    ids=str,
)
def test_every_way_to_train_lowers_the_loss(project: Path, changes: dict[str, Any]) -> None:
    set_params(project, epochs=6, checkpoint_interval_s=1e6, **changes)
    lines = (train_here(project) / "plots/metrics/train/loss.tsv").read_text().splitlines()
    losses = [float(line.split("\t")[1]) for line in lines[1:]]
    assert len(losses) == 6
    assert losses[-1] < losses[0]


def test_a_model_of_the_users_own_is_trained_and_in_the_lineage(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tiny_net.py").write_text(
        "from torch import nn\n"
        "def net(shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(144, num_classes))\n"
    )
    monkeypatch.syspath_prepend(project)
    set_params(project, model="tiny_net:net")
    lineage = json.loads((train_here(project) / "lineage.json").read_text())
    assert "module:tiny_net" in lineage["code"]


def test_data_without_a_val_split_train_without_a_validation_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_decoded(tmp_path / "decoded", splits={"train": [30]}, shape=(12, 12, 1), num_classes=4)
    set_params(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert set(json.loads((train_here(tmp_path) / "metrics.json").read_text())) == {
        "train",
        "learning_rate",
        "step",
    }


def test_more_ranks_than_logical_workers_are_refused(project: Path) -> None:
    set_params(project, num_logical_workers=1)
    process = runs.start(project, num_ranks=2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert output.count("There are more processes than logical workers") == 1


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_one_to_four_ranks_write_the_same_bytes(project: Path, precision: str) -> None:
    set_params(project, precision=precision, num_logical_workers=4, num_accumulation_steps=2)
    alone = contents(train_here(project))
    for num_ranks in (2, 3, 4):
        assert contents(train_there(project, num_ranks, f"on-{num_ranks}")) == alone


def test_the_result_is_the_averaged_model(project: Path) -> None:
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        run = Session.run

        def remembered(self: Session, after_step: Callable[[], None]) -> None:
            run(self, after_step)
            seen.append({k: v.clone() for k, v in self.state.ema.module.state_dict().items()})

        patch.setattr(Session, "run", remembered)
        out = train_here(project)
    _, tensors = weights.read(out / "model.safetensors")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in seen[0].items())


def test_data_behind_a_url_give_the_same_weights(
    project: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    with serve_web() as web, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE_FOLDER", str(tmp_path / "cache"))
        for path in (project / "decoded").iterdir():
            web.files[f"data/{path.name}"] = path.read_bytes()
        web.faults = ["", "", "500", "cut"]
        assert contents(train_here(project, "url", f"{web.url}/data")) == undisturbed
    assert not web.faults


def test_damaged_samples_are_replaced_and_told_alike_on_any_number_of_ranks(
    project: Path, data: Path
) -> None:
    (project / "decoded").unlink()  # which all tests share
    shutil.copytree(data, project / "decoded")
    images, _ = draw(20, (12, 12, 1), 4, [0, 1])
    shard = project / "decoded" / "train-00001.arrow"
    content = shard.read_bytes()
    for row in (3, 17):
        image = images[row].tobytes()
        assert content.count(image) == 1
        content = content.replace(image, bytes([image[0] ^ 1]) + image[1:])
    shard.write_bytes(content)
    with pytest.raises(HeadraceError, match="A sample is damaged"):
        train_here(project, "failing")
    set_params(project, on_bad_sample="substitute")
    alone = contents(train_here(project))
    told = json.loads(alone["lineage.json"])["substituted"]
    assert [one["key"] for one in told] == ["train/00001/000003", "train/00001/000017"]
    assert all(one["substitute_key"].startswith("train/00001/") for one in told)
    assert json.loads(alone["metrics.json"])["substituted"] == 2
    assert contents(train_there(project, 2)) == alone
