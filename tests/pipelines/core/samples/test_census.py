from typing import Any

import pyarrow as pa

from pipelines.core.records import MANIFEST
from pipelines.core.report import dumps
from pipelines.core.samples.census import census

ROW: dict[str, Any] = {
    "container": "",
    "member": "",
    "label_index": 0,
    "sha256": "",
    "num_bytes": 10,
    "format": "PNG",
    "width": 4,
    "height": 3,
    "mode": "L",
    "orientation": 1,
    "num_frames": 1,
    "brightness": 1.5,
    "contrast": 2.0,
    "sharpness": 3.0,
}


def manifest(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{**ROW, "key": str(number), **row} for number, row in enumerate(rows)], schema=MANIFEST
    )


def test_census_counts_splits_classes_formats_and_sizes() -> None:
    rows: list[dict[str, Any]] = [
        {"label": "cat", "split": "train", "width": 9, "orientation": 6},
        {"label": "cat", "split": "test", "format": "GIF", "num_frames": 3},
        {"label": "dog", "split": "train", "mode": "RGB"},
    ]
    counts = census(manifest(rows), ["cat", "dog", "emu"])
    assert counts["splits"] == {"train": 2, "val": 0, "test": 1}
    assert counts["classes"] == {
        "cat": {"train": 1, "val": 0, "test": 1},
        "dog": {"train": 1, "val": 0, "test": 0},
        "emu": {"train": 0, "val": 0, "test": 0},
    }
    assert counts["class_size"] == {"min": 0, "median": 1, "max": 2}
    assert counts["formats"] == {"GIF": 1, "PNG": 2}
    assert counts["modes"] == {"L": 2, "RGB": 1}
    assert (counts["num_rotated"], counts["num_animated"], counts["num_classes"]) == (1, 1, 3)
    images = counts["images"]
    assert isinstance(images, dict)
    assert images["width"] == {"min": 4, "median": 4, "max": 9}
    assert images["brightness"] == {"min": 1.5, "median": 1.5, "max": 1.5}


def test_census_of_thousands_of_classes_is_small_and_names_the_extremes() -> None:
    labels = [f"class {number:04d}" for number in range(3000)]
    rows = [{"label": label, "split": "train"} for label in labels]
    rows += [{"label": "class 0007", "split": "val"}] * 5
    counts = census(manifest(rows), labels)
    assert "classes" not in counts
    assert next(iter(counts["largest_classes"].items())) == ("class 0007", 6)  # type: ignore[union-attr]
    assert len(counts["smallest_classes"]) == 10  # type: ignore[arg-type]
    assert len(dumps(counts)) < 3000
