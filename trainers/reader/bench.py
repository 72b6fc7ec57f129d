"""What bounds the reading of a dataset on this machine, without training.

    python -m trainers.reader.bench datasets/fashion/decoded
    python -m trainers.reader.bench s3://bucket/decoded --seconds 20

Reads shuffled batches twice, from the same step on: first from the disk or the bucket, then as
much once more out of memory. What the first took longer is the share of reading, the rest is
copying, which here includes checksums. Beside them stand the ceilings of `ceiling`, measured in the
same run.

Costs at most about five times `--seconds`. A bucket's shards go to a temporary cache.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pipelines.core.errors import HeadraceError
from trainers.reader import ceiling
from trainers.reader.index import Index, open_index
from trainers.reader.loader import Placement, Reader
from trainers.reader.order import training
from trainers.reader.remote import NUM_THREADS

_CACHE = "HEADRACE_CACHE_FOLDER"
_LOW = 0.5  # Of its ceiling: below, neither the store nor memory is what holds reading up.


@dataclass(frozen=True)
class Figures:
    """Rates in samples/s."""

    cold: float
    """The reader, from the store."""
    warm: float
    """The reader, out of memory."""
    store: float
    """What the store gives without the reader."""
    memory: float
    """What one thread copies without the reader."""
    store_name: str
    """`disk` or `store`."""

    @property
    def reading(self) -> float:
        """Share of the cold pass that went to the store, 0..1."""
        return max(0.0, 1 - self.cold / self.warm)

    @property
    def verdict(self) -> str:
        """What bounds reading, and how much of that is reached."""
        if self.store < self.memory:
            what, ratio, giver = "storage", self.cold / self.store, f"this {self.store_name} gives"
        else:
            what, ratio, giver = "memory", self.cold / self.memory, "one thread copies"
        return f"{what if ratio >= _LOW else 'reader'}-bound: {ratio:.2f} of what {giver}"

    def table(self) -> str:
        """For people."""
        rows = [
            (f"from the {self.store_name}", self.cold, self.store),
            ("out of memory", self.warm, self.memory),
        ]
        lines = [f"{'':16}{'samples/s':>12}{'ceiling':>12}{'share':>8}"]
        lines += [
            f"{name:16}{ours:12,.0f}{top:12,.0f}{ours / top:8.2f}" for name, ours, top in rows
        ]
        lines.append(f"time: reading {self.reading:.0%}, copying {1 - self.reading:.0%}")
        return "\n".join([*lines, self.verdict])


def measure(
    source: Path | str, split: str, batch_size: int, num_threads: int, limit_s: float
) -> Figures:
    """Measure one split of a decoded dataset, a folder or the URL of one.

    Raises:
        HeadraceError: it is missing, damaged or less than a batch.
    """
    with _empty_cache() as cache:
        index = open_index(source)
        part = index.split(split)
        paths = [] if index.url else list(part.shards)
        names = [str(name) for name in part.names]
        before = _store(index, names, paths, limit_s)
        ceiling.forget(paths)
        cold, num_steps = _pass(source, split, (batch_size, num_threads), limit_s, None)
        warm, _ = _pass(source, split, (batch_size, num_threads), np.inf, num_steps)
        held = paths or [path for path in cache.rglob("*") if path.is_file()]
        image_bytes = int(np.prod(index.shape))
        copied = ceiling.memory(held, batch_size * image_bytes, limit_s)
        given = max(before, _store(index, names, paths, limit_s))
    sample_bytes = int(part.num_bytes.sum()) / part.num_samples
    name = "store" if index.url else "disk"
    return Figures(cold, warm, given / sample_bytes, copied / image_bytes, name)


def _store(index: Index, names: list[str], paths: list[Path], limit_s: float) -> float:
    if index.url:
        return ceiling.store(index.url, names, NUM_THREADS, limit_s)
    return ceiling.disk(paths, limit_s)


def _pass(
    source: Path | str, split: str, width: tuple[int, int], limit_s: float, num_steps: int | None
) -> tuple[float, int]:
    """Samples/s, and the steps made, of an epoch's beginning."""
    batch_size, num_threads = width
    plan = training(
        seed=0, batch_size=batch_size, num_logical_workers=1, window_shards=16, tail="drop"
    )
    place = Placement(0, 1, num_threads, prefetch_batches=4, device=torch.device("cpu"))
    with Reader(source, split, plan, place) as reader:
        num_made, started = 0, time.perf_counter()
        for _ in reader.batches(reader.start()):
            num_made += 1
            if num_made == num_steps or time.perf_counter() - started >= limit_s:
                break
        seconds = time.perf_counter() - started
    return num_made * batch_size / seconds, num_made


@contextmanager
def _empty_cache() -> Iterator[Path]:
    before = os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[_CACHE] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop(_CACHE)
            if before is not None:
                os.environ[_CACHE] = before


def main(arguments: list[str]) -> None:
    """Measure what the command line asks for, and print it."""
    parser = argparse.ArgumentParser(prog="python -m trainers.reader.bench")
    parser.add_argument("source", help="decoded dataset: a folder, or the URL of one")
    parser.add_argument("--split", default="train")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1, help="that read")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement, at most")
    asked = parser.parse_args(arguments)
    source = asked.source if "://" in asked.source else Path(asked.source)
    try:
        found = measure(source, asked.split, asked.batch_size, asked.threads, asked.seconds)
    except HeadraceError as error:
        sys.exit(f"ERROR: {error}")
    sys.stdout.write(f"{found.table()}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
