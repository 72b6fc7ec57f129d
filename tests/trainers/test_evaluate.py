import contextlib
import csv
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pipelines.core.errors import HeadraceError
from pipelines.core.report import Report
from pipelines.core.stage import Job
from tests.decoded import write_decoded
from trainers import evaluate, weights
from trainers.evaluate import Params
from trainers.reader.index import open_index

ROOT = Path(__file__).parents[2]
SPLITS = {"train": [5], "test": [37, 0, 20, 44]}
NUM_TEST = 101
PARAMS = Params(split="test", batch_size=32, num_logical_workers=4, num_threads=1, num_mistakes=12)
BANDS = """
import torch

class Bands(torch.nn.Module):
    '''Sees which of the bands of an image is bright, and takes that class for what `mixes` says.'''

    def __init__(self, num_classes):
        super().__init__()
        self.mixes = torch.nn.Parameter(torch.eye(num_classes))

    def forward(self, x):
        bands = x.mean((1, 3)).reshape(len(x), len(self.mixes), -1).mean(2)
        return 20 * bands @ self.mixes

def bands(shape, num_classes):
    return Bands(num_classes)
"""


@pytest.fixture(autouse=True)
def _one_process_as_it_was() -> Iterator[None]:
    """The stage sets the arithmetic of its process; put it back."""
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(mode=False)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data, and a model that is always right, but that it takes each class3 for class5."""
    write_decoded(tmp_path / "decoded", splits=SPLITS, shape=(20, 20, 1))
    (tmp_path / "bandsmodel.py").write_text(BANDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    mixes = torch.eye(10)
    mixes[3, 3], mixes[3, 5] = 0.0, 1.0
    save(tmp_path, mixes)
    return tmp_path


def save(project: Path, mixes: torch.Tensor, **changed: Any) -> None:
    index = open_index(project / "decoded")
    about = weights.About(
        model="bandsmodel:bands",
        shape=index.shape,
        labels=index.labels,
        dataset_version=index.version,
        mean=(0.3,),
        std=(0.3,),
        params={},
        seeds={},
        code={},
        environment={},
        chain={},
    )
    (project / "model").mkdir(exist_ok=True)
    path = project / "model" / "model.safetensors"
    weights.write(path, {"mixes": mixes}, dataclasses.replace(about, **changed))


def run(project: Path, params: Params = PARAMS, out: str = "out") -> Report:
    (project / out).mkdir()
    inputs = {"data": project / "decoded", "model": project / "model"}
    with contextlib.ExitStack() as stack:
        return evaluate.run(Job("evaluate", params, inputs, project / out, stack, []))


def changed(**values: Any) -> Params:
    return dataclasses.replace(PARAMS, **values)


def truth(project: Path, split: str = "test") -> dict[str, str]:
    """Key -> label, from the shards themselves."""
    index = open_index(project / "decoded")
    found: dict[str, str] = {}
    for shard in index.split(split).shards:
        with shard.open("rb") as file:
            table = pa.ipc.open_file(file).read_all()
        for row in table.select(["key", "label"]).to_pylist():
            found[row["key"]] = index.labels[row["label"]]
    return found


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_every_sample_is_judged_once_and_rightly(project: Path) -> None:
    run(project)
    table = pq.read_table(project / "out" / "predictions.parquet")
    expected = truth(project)
    assert len(expected) == NUM_TEST
    assert table.column("key").to_pylist() == sorted(expected)
    for key, label, predicted in zip(*(table.column(i).to_pylist() for i in range(3)), strict=True):
        assert label == expected[key]
        assert predicted == ("class5" if label == "class3" else label)


def test_scores_are_those_of_the_mistakes_it_makes(project: Path) -> None:
    labels = list(truth(project).values())
    num_threes, num_fives = labels.count("class3"), labels.count("class5")
    assert num_threes > 2
    report = run(project)
    metrics = json.loads((project / "out" / "metrics.json").read_text())
    assert metrics["accuracy"] == pytest.approx(1 - num_threes / NUM_TEST, abs=1e-6)
    assert metrics["num_samples"] == report["num_samples"] == NUM_TEST
    with (project / "out" / "plots" / "classes.csv").open() as file:
        rows = {row["label"]: row for row in csv.DictReader(file)}
    assert float(rows["class3"]["recall"]) == 0
    assert float(rows["class5"]["precision"]) == pytest.approx(
        num_fives / (num_fives + num_threes), abs=1e-6
    )
    assert float(rows["class4"]["recall"]) == float(rows["class4"]["precision"]) == 1


def test_the_picture_shows_the_mistakes(project: Path) -> None:
    num_threes = list(truth(project).values()).count("class3")
    run(project)
    run(project, changed(num_mistakes=1), out="one")
    run(project, changed(num_mistakes=0), out="none")
    with Image.open(project / "out" / "plots" / "mistakes.png") as picture:
        assert picture.width > 400  # a grid
    with Image.open(project / "one" / "plots" / "mistakes.png") as picture:
        assert picture.width < 200  # one tile
    assert (project / "none" / "plots" / "mistakes.png").is_file()
    assert num_threes >= 3


def test_a_model_that_is_always_right_has_no_mistakes_to_show(project: Path) -> None:
    save(project, torch.eye(10))
    assert run(project)["accuracy"] == 1.0


@pytest.mark.parametrize("split", ["test", "train"])
def test_the_batch_size_decides_nothing_but_the_speed(project: Path, split: str) -> None:
    run(project, changed(split=split))
    run(project, changed(split=split, batch_size=9, num_logical_workers=3), out="again")
    first, again = (
        pq.read_table(project / out / "predictions.parquet", columns=["key", "predicted"])
        for out in ("out", "again")
    )
    assert first.equals(again)


def test_a_split_that_is_not_there_is_told_with_those_that_are(project: Path) -> None:
    with pytest.raises(HeadraceError, match="'val' has no samples") as caught:
        run(project, changed(split="val"))
    assert "test, train" in str(caught.value)


def test_a_model_of_other_data_is_refused_with_both_versions(project: Path) -> None:
    save(project, torch.eye(10), dataset_version="0123" * 16)
    with pytest.raises(HeadraceError, match="another version of the dataset") as caught:
        run(project)
    assert "0123" * 16 in str(caught.value)
    assert open_index(project / "decoded").version in str(caught.value)
    assert "dvc repro" in str(caught.value)


def test_weights_that_do_not_fit_the_code_are_refused(project: Path) -> None:
    save(project, torch.eye(9))
    with pytest.raises(HeadraceError, match="do not fit the model 'bandsmodel:bands'"):
        run(project)


def test_a_model_that_diverged_is_told_with_a_key(project: Path) -> None:
    mixes = torch.eye(10)
    mixes[0, 0] = float("nan")
    save(project, mixes)
    with pytest.raises(HeadraceError, match="no finite number") as caught:
        run(project)
    assert "test/00000/000000" in str(caught.value)
    assert f"{NUM_TEST} of {NUM_TEST}" in str(caught.value)


def test_a_flipped_bit_in_the_data_is_told(project: Path) -> None:
    shard = open_index(project / "decoded").split("test").shards[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(HeadraceError, match="damaged") as caught:
        run(project)
    assert shard.name in str(caught.value)


def evaluated_on_ranks(project: Path, num_ranks: int) -> Path:
    """Run the stage as DVC does."""
    (project / "params.yaml").write_text(
        "evaluate:\n"
        + "".join(f"  {name}: {value}\n" for name, value in dataclasses.asdict(PARAMS).items())
    )
    out = f"ranks{num_ranks}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trainers.evaluate"),
            *("--data", "decoded", "--model", "model", "--out", out),
        ],
        cwd=project,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{project}",
            "HEADRACE_NUM_RANKS": str(num_ranks),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("accuracy") == 1
    return project / out


def test_any_number_of_ranks_writes_the_same_bytes(project: Path) -> None:
    run(project)
    assert digests(evaluated_on_ranks(project, 3)) == digests(project / "out")
