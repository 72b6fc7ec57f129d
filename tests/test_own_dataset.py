"""A user's own images, from a folder of files to judged weights, without a line of code.

The steps are those that README names: files into `datasets/<name>/source/`, a card beside them, the
dataset's name and its images' shape in params.yaml, `dvc repro`.
"""

import json
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.core.records import metadata, read_ipc
from tests.messy import PARAMS, messy_files, write_messy
from tests.project import Shared, change_params, copy_of, make_project, run

EXPECTED = {path: reason for path, (_, reason) in messy_files(num_rounds=2).items()}
CARD = """\
title: Cats and dogs
licence: CC0-1.0
origin: drawn by a test
task: classification
labels: [cat, dog]
sources:
  - url: source
samples:
  layout: folders
"""


@pytest.fixture(scope="module")
def own(shared: Shared) -> Path:
    """A project after `dvc repro` on messy files."""

    def make(project: Path) -> None:
        make_project(project)
        write_messy(project / "datasets/pets/source", num_rounds=2)
        (project / "datasets/pets/dataset.yaml").write_text(CARD)
        changes = {
            "dataset": "pets",
            "clean": PARAMS,
            "decode": {"height_px": 32, "width_px": 40, "channels": 3},
            "train": {"batch_size": 16, "num_logical_workers": 4, "epochs": 2},
        }
        change_params(project, changes)
        run(project, "dvc", "repro")

    return shared("own", make)


def test_every_file_is_kept_or_rejected_with_its_reason(own: Path) -> None:
    rejected = pq.read_table(own / "datasets/pets/clean/rejected.parquet").to_pylist()
    found = {row["path"]: row["reason"] for row in rejected}
    assert found == {path: reason for path, reason in EXPECTED.items() if reason}
    report = json.loads((own / "datasets/pets/reports/clean.json").read_text())
    assert report["samples_in"] == len(EXPECTED)
    assert report["rejected"] == dict(Counter(found.values()))


def test_all_that_was_kept_is_decoded_to_one_shape(own: Path) -> None:
    index = read_ipc(own / "datasets/pets/decoded/index.arrow")
    assert metadata(index.schema)["shape"] == [32, 40, 3]
    num_kept = sum(reason is None for reason in EXPECTED.values())
    assert pc.sum(index.column("num_rows")).as_py() == num_kept
    assert set(index.column("split").to_pylist()) == {"train", "val", "test"}


def test_a_model_is_trained_and_judged_on_it(own: Path) -> None:
    index = read_ipc(own / "datasets/pets/decoded/index.arrow").to_pylist()
    num_test = sum(row["num_rows"] for row in index if row["split"] == "test")
    predictions = pq.read_table(own / "runs/evaluate/predictions.parquet")
    assert predictions.num_rows == num_test
    assert set(predictions.column("predicted").to_pylist()) <= {"cat", "dog"}
    assert "val" in json.loads((own / "runs/train/metrics.json").read_text())


def test_a_new_file_is_noticed_and_moves_no_other(own: Path, tmp_path: Path) -> None:
    project = copy_of(own, tmp_path / "copy")
    before = splits(project)
    source = project / "datasets/pets/source/cat"
    new = next(iter(sorted(source.glob("*.bmp"))))
    # A byte after the end of the pixels: another content, the same picture.
    (source / "one more.bmp").write_bytes(new.read_bytes() + b"\0")
    done = run(project, "dvc", "repro", "clean")
    after = splits(project)
    assert "Running stage 'ingest'" in done.stdout
    assert set(after) - set(before) == {"cat/one_more"}
    assert {key: after[key] for key in before} == before


def splits(project: Path) -> dict[str, str]:
    """The split of every kept sample."""
    table = pq.read_table(project / "datasets/pets/clean/manifest", columns=["key", "split"])
    return dict(zip(*(table.column(name).to_pylist() for name in ("key", "split")), strict=True))
