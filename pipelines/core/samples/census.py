"""The census of a dataset: how many samples of which class and split, and what they look like.

Small whatever the data: classes are counted one by one up to a number that a person reads, and by
their extremes beyond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core.records import SPLITS
from pipelines.core.report import Json, Report
from pipelines.core.samples import outliers

MAX_CLASSES = 50
"""Beyond, only the classes with the most and the fewest samples are named."""
_NUM_EXTREMES = 10
_MEASURES = ("width", "height", "num_bytes", "brightness", "contrast", "sharpness")


def census(manifest: pa.Table, labels: Sequence[str]) -> Report:
    """Counts and distributions of kept samples.

    Args:
        manifest: MANIFEST rows of all buckets, at least one.
        labels: the class names.
    """
    splits = Counter(_texts(manifest, "split"))
    sizes = Counter(dict.fromkeys(labels, 0))
    sizes.update(_texts(manifest, "label"))
    return {
        "splits": {split: splits[split] for split in SPLITS},
        "num_classes": len(labels),
        "class_size": _spread(np.array(list(sizes.values()))),
        **_classes(manifest, sizes),
        "formats": _counts(manifest, "format"),
        "modes": _counts(manifest, "mode"),
        "num_rotated": int((manifest["orientation"].to_numpy() != 1).sum()),
        "num_animated": int((manifest["num_frames"].to_numpy() > 1).sum()),
        "outliers": outliers.summary(
            outliers.scores_of(
                {
                    name: manifest[name].to_numpy().astype(np.float64)
                    for name in outliers.COLUMN_NAMES
                }
            )
        ),
        "images": {name: _spread(manifest[name].to_numpy()) for name in _MEASURES},
    }


def _counts(manifest: pa.Table, column: str) -> dict[str, Json]:
    return dict(sorted(Counter(_texts(manifest, column)).items()))


def _texts(manifest: pa.Table, column: str) -> list[str]:
    return [str(value) for value in manifest[column].to_pylist()]


def _spread(values: npt.NDArray[Any]) -> dict[str, Json]:
    """Least, median and greatest; of an even number of values the lower of the middle two."""
    ordered = np.sort(values)
    middle = ordered[(len(ordered) - 1) // 2]
    return {"min": ordered[0].item(), "median": middle.item(), "max": ordered[-1].item()}


def _classes(manifest: pa.Table, sizes: Counter[str]) -> dict[str, Json]:
    if len(sizes) > MAX_CLASSES:
        ranked = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
        return {
            "largest_classes": dict(ranked[:_NUM_EXTREMES]),
            "smallest_classes": dict(ranked[-_NUM_EXTREMES:]),
        }
    pairs = zip(_texts(manifest, "label"), _texts(manifest, "split"), strict=True)
    counts = Counter(pairs)
    return {
        "classes": {
            label: {split: counts[label, split] for split in SPLITS} for label in sorted(sizes)
        }
    }
