"""What a judgement leaves on disk, but for the picture: metrics, plots' data, predictions.

`metrics.json` (a few figures), `plots/confusion.csv` (one row a sample: DVC's template `confusion`
counts them), `plots/classes.csv` (one row a class) and `predictions.parquet` (one row a sample, by
key). Equal results write equal bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.core import report
from pipelines.core.records import with_metadata, write_parquet
from pipelines.core.report import Report
from trainers.scores import Predictions, Scores


def metrics(predictions: Predictions, scores: Scores) -> Report:
    """The figures that `dvc metrics show` shows, one name each."""
    return {
        "accuracy": scores.accuracy,
        "loss": predictions.loss,
        "macro_precision": scores.macro_precision,
        "macro_recall": scores.macro_recall,
        "num_samples": scores.num_samples,
    }


def write(out: Path, labels: Sequence[str], predictions: Predictions, scores: Scores) -> None:
    """Write the metrics, the two tables that DVC plots, and the predictions."""
    (out / "plots").mkdir()
    report.write(out / "metrics.json", metrics(predictions, scores))
    actual = [labels[row] for row in predictions.labels]
    predicted = [labels[row] for row in predictions.predicted]
    _write_csv(
        out / "plots" / "confusion.csv",
        ("actual", "predicted"),
        zip(actual, predicted, strict=True),
    )
    counts, shares = scores.num_by_class, (scores.precision, scores.recall)
    _write_csv(
        out / "plots" / "classes.csv",
        ("label", "num_samples", "precision", "recall"),
        (
            (label, counts[row], *("" if np.isnan(it[row]) else f"{it[row]:.6f}" for it in shares))
            for row, label in enumerate(labels)
        ),
    )
    probabilities = pa.array(np.exp(predictions.log_probabilities).reshape(-1), pa.float32())
    table = pa.table(
        {
            "key": predictions.keys,
            "label": actual,
            "predicted": predicted,
            "confidence": pa.array(predictions.confidence, pa.float32()),
            "probabilities": pa.FixedSizeListArray.from_arrays(probabilities, len(labels)),
        }
    )
    # The labels say which class each of the probabilities belongs to.
    write_parquet(out / "predictions.parquet", with_metadata(table, {"labels": list(labels)}))


def _write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
