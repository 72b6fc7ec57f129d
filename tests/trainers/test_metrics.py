import csv
import json
import math
from pathlib import Path

import pytest

from trainers import metrics
from trainers.metrics import History, Sums


def two_epochs() -> History:
    history = History()
    history.current.add(4, 2.0, 1)
    history.current.add(4, 1.0, 3)
    history.end_epoch(0.1, {"loss": 1.25, "accuracy": 0.5})
    history.current.add(8, 0.5, 6)
    history.end_epoch(0.05, {"loss": 1.0, "accuracy": 0.75})
    return history


def test_an_epoch_is_the_mean_over_its_samples() -> None:
    first, second = two_epochs().epochs
    assert first == {
        "train/loss": 1.5,
        "train/accuracy": 0.5,
        "val/loss": 1.25,
        "val/accuracy": 0.5,
        "learning_rate": 0.1,
    }
    assert second["train/accuracy"] == 0.75


def test_an_epoch_without_validation_has_no_validation_metrics() -> None:
    history = History()
    history.current.add(1, 1.0, 1)
    assert set(history.end_epoch(0.1, None)) == {"train/loss", "train/accuracy", "learning_rate"}


def test_means_of_nothing_are_nan() -> None:
    assert all(math.isnan(value) for value in Sums().means().values())


def test_a_history_survives_json_bit_by_bit() -> None:
    history = two_epochs()
    history.current.add(3, 1 / 3, 2)
    assert History.from_state(json.loads(json.dumps(history.state()))) == history


def test_the_whole_history_is_written_for_dvc(tmp_path: Path) -> None:
    metrics.write(two_epochs(), tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert summary["train"]["accuracy"] == 0.75
    assert summary["val"]["loss"] == 1.0
    plot = tmp_path / "out" / "plots" / "metrics" / "val" / "accuracy.tsv"
    rows = list(csv.DictReader(plot.read_text().splitlines(), delimiter="\t"))
    assert rows == [{"step": "1", "accuracy": "0.5"}, {"step": "2", "accuracy": "0.75"}]


def test_equal_histories_write_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        metrics.write(two_epochs(), tmp_path / name)
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*")]
    assert files
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize(
    ("accuracies", "expected"), [([], -1), ([0.1], 0), ([0.1, 0.3, 0.2, 0.3], 1)]
)
def test_the_best_epoch_is_the_first_of_the_best(accuracies: list[float], expected: int) -> None:
    assert History([{"val/accuracy": it} for it in accuracies]).best_epoch == expected
    assert History([{"train/accuracy": it} for it in accuracies]).best_epoch == len(accuracies) - 1
