"""Headrace's reader and the ceiling, as contenders."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.reader.contenders import BATCH_SIZE, Contender, Data, flat_file
from trainers.reader.loader import Placement, Reader
from trainers.reader.order import training

MANY_EPOCHS = 1_000_000


def ceiling(data: Data, folder: Path) -> Iterator[Any]:
    """One thread copies as many contiguous bytes from random offsets into a reused buffer."""
    source = flat_file(data, folder).reshape(-1)
    batch_bytes = BATCH_SIZE * int(np.prod(data.shape))
    target = np.empty(batch_bytes, np.uint8)
    rng = np.random.default_rng(0)
    while True:
        for offset in rng.integers(0, len(source) - batch_bytes, 1024).tolist():
            target[:] = source[offset : offset + batch_bytes]
            yield target


def reader(data: Data, _: Path, num_threads: int = 1) -> Iterator[Any]:
    """Headrace: 4 batches ahead, windows of 16 shards, checksums verified on first touch."""
    plan = training(
        seed=0, batch_size=BATCH_SIZE, num_logical_workers=1, window_shards=16, tail="drop"
    )
    place = Placement(0, 1, num_threads, prefetch_batches=4, device=torch.device("cpu"))
    with Reader(data.folder, "train", plan, place) as opened:
        for batch in opened.batches(opened.start(), num_epochs=MANY_EPOCHS):
            yield batch.microbatches[0].images


OURS: dict[str, Contender] = {
    "ceiling": ceiling,
    "Headrace, 1 thread": reader,
    "Headrace, 2 threads": partial(reader, num_threads=2),
}
