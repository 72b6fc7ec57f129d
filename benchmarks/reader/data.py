"""The data of the benchmark: one decoded dataset a workload, as `decode` leaves it.

Images are noise: none of the readers decompresses anything, so what the bytes are costs nothing.
Written once and kept; a folder whose writing was cut short is written anew.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipelines.core.records import with_metadata, write_ipc
from pipelines.core.shards.decoded import FORMAT, INDEX, write_shard

NUM_SHARDS = 16
NUM_CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """What is read."""

    name: str
    shape: tuple[int, int, int]
    """Height, width, channels; uint8."""
    num_samples: int

    @property
    def row_bytes(self) -> int:
        """Bytes of an image."""
        height, width, channels = self.shape
        return height * width * channels


# Each about 1 GB: more than any cache of a processor, less than the memory of any machine.
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("96x96x3", (96, 96, 3), 36_864),
        Workload("28x28x1", (28, 28, 1), 1_280_000),
        Workload("224x224x3", (224, 224, 3), 6_656),
    )
}


def write_decoded(folder: Path, workload: Workload) -> Path:
    """Write the dataset of `workload` below `folder`, unless it is there; return where it is."""
    target = folder / workload.name / "decoded"
    if target.exists():
        return target
    writing = target.with_name(".tmp-decoded")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    num_rows = workload.num_samples // NUM_SHARDS
    rows = [_write_shard(writing, workload, bucket, num_rows) for bucket in range(NUM_SHARDS)]
    values = {
        "format": FORMAT,
        "shape": workload.shape,
        "labels": [f"class{number}" for number in range(NUM_CLASSES)],
        "num_buckets": NUM_SHARDS,
        "mean": None,
        "std": None,
    }
    table = pa.Table.from_pylist(rows, schema=INDEX)
    write_ipc(writing / "index.arrow", with_metadata(table, values))
    writing.rename(target)
    return target


def _write_shard(folder: Path, workload: Workload, bucket: int, num_rows: int) -> dict[str, object]:
    rng = np.random.default_rng(bucket)
    images = np.frombuffer(rng.bytes(num_rows * workload.row_bytes), np.uint8)
    keys = [f"{bucket:05d}/{row:07d}" for row in range(num_rows)]
    labels = rng.integers(0, NUM_CLASSES, num_rows).tolist()
    path = folder / f"train-{bucket:05d}.arrow"
    write_shard(path, images.reshape(num_rows, *workload.shape), keys, labels)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "split": "train",
        "bucket": bucket,
        "shard": path.name,
        "num_rows": num_rows,
        "num_bytes": path.stat().st_size,
        "sha256": digest,
    }
