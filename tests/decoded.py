"""Decoded datasets for tests, as `decode` leaves them.

Images carry their class (a bright band whose height depends on the label) under noise, so a small
model learns them within a few steps. Everything is a function of the arguments.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.core.records import with_metadata, write_ipc
from pipelines.core.shards.decoded import FORMAT, INDEX, Moments, write_shard


def write_decoded(
    folder: Path,
    *,
    splits: Mapping[str, Sequence[int]],
    shape: tuple[int, int, int] = (28, 28, 1),
    num_classes: int = 10,
    seed: int = 0,
) -> Path:
    """Write a decoded dataset into `folder` and return `folder`.

    `splits` maps a split to the rows of its buckets 0, 1, 2...; a bucket without rows gets no file,
    as in real data. Keys are `<split>/<bucket>/<row>`, so they ascend in storage order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[tuple[str, int, int, Path]] = []
    moments: list[Moments] = []
    for split in sorted(splits):
        for bucket, num_rows in enumerate(splits[split]):
            if num_rows:
                images, labels = draw(num_rows, shape, num_classes, [seed, len(shards)])
                keys = [f"{split}/{bucket:05d}/{row:06d}" for row in range(num_rows)]
                path = folder / f"{split}-{bucket:05d}.arrow"
                write_shard(path, images, keys, labels.tolist())
                shards.append((split, bucket, num_rows, path))
                moments.extend([Moments.of(images)] if split == "train" else [])
    total = Moments.total(moments, shape[2])
    values = {
        "format": FORMAT,
        "shape": shape,
        "labels": [f"class{index}" for index in range(num_classes)],
        "num_buckets": 1 << max(0, max(map(len, splits.values())) - 1).bit_length(),
        "mean": total.mean,
        "std": total.std,
    }
    write_ipc(folder / "index.arrow", with_metadata(_index(shards), values))
    return folder


def draw(
    num_rows: int, shape: tuple[int, int, int], num_classes: int, seed: list[int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images [n, H, W, C] uint8 and labels [n] int64, drawn from `seed`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_rows)
    images = rng.integers(0, 128, (num_rows, *shape), dtype=np.uint8)
    height = max(1, shape[0] // num_classes)
    for image, label in zip(images, labels, strict=True):
        top = int(label) * shape[0] // num_classes
        image[top : top + height] += 127
    return images, labels


def _index(shards: Sequence[tuple[str, int, int, Path]]) -> pa.Table:
    rows = [
        {
            "split": split,
            "bucket": bucket,
            "shard": path.name,
            "num_rows": num_rows,
            "num_bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for split, bucket, num_rows, path in shards
    ]
    return pa.Table.from_pylist(rows, schema=INDEX)
