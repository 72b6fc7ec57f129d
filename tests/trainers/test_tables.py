import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipelines.core.records import metadata
from trainers import tables
from trainers.scores import Predictions, score

LABELS = ('Bag, "leather"', "Boot", "靴")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    seen = Predictions(
        ids=np.array([2, 0, 1]),
        keys=["a", "b", "c"],
        labels=np.array([0, 0, 1]),
        log_probabilities=np.log(
            np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.2, 0.7, 0.1]], np.float32)
        ),
    )
    tables.write(tmp_path, LABELS, seen, score(seen))
    return tmp_path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_metrics_are_a_few_plain_figures(out: Path) -> None:
    assert json.loads((out / "metrics.json").read_text()) == {
        "accuracy": 0.666667,
        "loss": 0.774263,  # (0.356675 + 1.609438 + 0.356675) / 3
        "macro_precision": 0.75,
        "macro_recall": 0.75,
        "num_samples": 3,
    }


def test_confusion_has_one_row_a_sample(out: Path) -> None:
    assert [tuple(row.values()) for row in rows(out / "plots" / "confusion.csv")] == [
        (LABELS[0], LABELS[0]),
        (LABELS[0], LABELS[1]),
        (LABELS[1], LABELS[1]),
    ]
    assert list(rows(out / "plots" / "confusion.csv")[0]) == ["actual", "predicted"]


def test_classes_have_one_row_each_and_blanks_where_nothing_can_be_said(out: Path) -> None:
    assert rows(out / "plots" / "classes.csv") == [
        {"label": LABELS[0], "num_samples": "2", "precision": "1.000000", "recall": "0.500000"},
        {"label": LABELS[1], "num_samples": "1", "precision": "0.500000", "recall": "1.000000"},
        {"label": LABELS[2], "num_samples": "0", "precision": "", "recall": ""},
    ]


def test_predictions_have_a_row_a_sample_with_its_key(out: Path) -> None:
    table = pq.read_table(out / "predictions.parquet")
    assert table.column("key").to_pylist() == ["a", "b", "c"]
    assert table.column("label").to_pylist() == [LABELS[0], LABELS[0], LABELS[1]]
    assert table.column("predicted").to_pylist() == [LABELS[0], LABELS[1], LABELS[1]]
    assert str(table.schema.field("confidence").type) == "float"
    assert table.column("confidence").to_pylist() == pytest.approx([0.7, 0.7, 0.7])
    assert table.column("probabilities")[1].as_py() == pytest.approx([0.2, 0.7, 0.1])
    assert metadata(table.schema)["labels"] == list(LABELS)
