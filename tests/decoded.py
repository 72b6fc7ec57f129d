"""Decoded shards for tests, written by the contract between `decode` and the reader.

Images carry their class (a bright block whose place depends on the label) under noise, so a small model can
learn them within a few steps; everything is a function of the arguments.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa

INDEX_SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("bucket", pa.int32()),
        ("shard", pa.string()),
        ("num_rows", pa.int64()),
        ("num_bytes", pa.int64()),
        ("sha256", pa.string()),
    ]
)


def write_decoded(
    folder: Path,
    *,
    splits: Mapping[str, Sequence[int]],
    shape: tuple[int, int, int] = (28, 28, 1),
    num_classes: int = 10,
    seed: int = 0,
) -> Path:
    """Write a decoded dataset into `folder` and return `folder`.

    `splits` maps a split to the rows of its buckets 0, 1, 2...; a bucket with no rows gets no file, as in real data.
    The key of a sample is `<split>/<bucket>/<row>`, zero-padded, so keys ascend in storage order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for split in sorted(splits):
        for bucket, num_rows in enumerate(splits[split]):
            if num_rows:
                images, labels = _draw(num_rows, shape, num_classes, [seed, len(rows)])
                keys = [f"{split}/{bucket:05d}/{row:06d}" for row in range(num_rows)]
                path = folder / f"{split}-{bucket:05d}.arrow"
                write_shard(path, keys, images, labels)
                rows.append((split, bucket, num_rows, path))
    num_buckets = 1 << max(0, max(map(len, splits.values())) - 1).bit_length()
    _write_index(folder, rows, shape, num_classes, num_buckets)
    return folder


def write_shard(path: Path, keys: Sequence[str], images: np.ndarray, labels: np.ndarray) -> None:
    """Write one decoded shard. `images` [n, H, W, C] uint8, `labels` [n] integers, `keys` ascending."""
    tensor = pa.fixed_shape_tensor(pa.uint8(), images.shape[1:])
    storage = pa.FixedSizeListArray.from_arrays(
        pa.array(images.reshape(-1)), type=tensor.storage_type
    )
    columns = {
        "image": pa.ExtensionArray.from_storage(tensor, storage),
        "key": pa.array(keys, pa.string()),
        "label": pa.array(labels, pa.int32()),
        "crc32c": pa.array([google_crc32c.value(image.tobytes()) for image in images], pa.uint32()),
    }
    schema = pa.schema(
        [pa.field(name, column.type, nullable=False) for name, column in columns.items()]
    )
    batch = pa.record_batch(list(columns.values()), schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)


def _draw(
    num_rows: int, shape: tuple[int, int, int], num_classes: int, seed: list[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, H, W, C] uint8 and labels [n] int32 drawn from `seed`."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, num_classes, num_rows, dtype=np.int32)
    images = rng.integers(0, 128, (num_rows, *shape), dtype=np.uint8)
    stripe = max(1, shape[0] // num_classes)
    for image, label in zip(images, labels, strict=True):
        top = int(label) * shape[0] // num_classes
        image[top : top + stripe] += 127
    return images, labels


def _write_index(
    folder: Path,
    rows: Sequence[tuple[str, int, int, Path]],
    shape: tuple[int, int, int],
    num_classes: int,
    num_buckets: int,
) -> None:
    meta = {
        "headrace.format": "1",
        "headrace.shape": json.dumps(list(shape)),
        "headrace.labels": json.dumps([f"class{index}" for index in range(num_classes)]),
        "headrace.num_buckets": json.dumps(num_buckets),
    }
    table = pa.table(
        [
            [split for split, *_ in rows],
            [bucket for _, bucket, *_ in rows],
            [path.name for *_, path in rows],
            [num_rows for _, _, num_rows, _ in rows],
            [path.stat().st_size for *_, path in rows],
            [hashlib.sha256(path.read_bytes()).hexdigest() for *_, path in rows],
        ],
        schema=INDEX_SCHEMA.with_metadata(meta),
    )
    with (
        pa.OSFile(str(folder / "index.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
