"""Figures of the reader that stand for themselves: checksums, waiting, start, scale, shuffling.

Each comes with what it is compared with, measured beside it in the same run.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from pipelines.core.records import with_metadata, write_ipc
from pipelines.core.shards.decoded import FORMAT, INDEX
from trainers.reader.index import open_index
from trainers.reader.loader import Placement, Reader
from trainers.reader.order import Order, training

BATCH_SIZE = 256
_ROUNDS = 5
_STEP_S = 0.01
_LARGE = (100_000, 10_000)  # shards, samples of each

Figures = dict[str, float]


def measure(decoded: Path, folder: Path) -> Figures:
    """All figures, by name."""
    return {**checksums(decoded), **waiting(decoded), **scale(folder), **shuffling()}


def table(figures: Figures) -> str:
    """A table for people."""
    return "\n".join(f"{name:74}{value:12.4g}" for name, value in figures.items())


def _open(decoded: Path) -> Reader:
    plan = training(
        seed=0, batch_size=BATCH_SIZE, num_logical_workers=1, window_shards=16, tail="drop"
    )
    place = Placement(0, 1, num_threads=1, prefetch_batches=4, device=torch.device("cpu"))
    return Reader(decoded, "train", plan, place)


def checksums(decoded: Path) -> Figures:
    """The first pass of a reader checks every sample, the second none; both over mapped pages."""
    passes = [_two_passes(decoded) for _ in range(_ROUNDS)]
    first, second = (statistics.median(times) for times in zip(*passes, strict=True))
    cost = statistics.median(one - other for one, other in passes)
    return {
        "checksum: us a sample of 27,648 bytes, once a run and sample": cost * 1e6,
        "checksum: of the time of the first pass, reading alone": cost / first,
        "checksum: of the time of 20 passes, reading alone": cost / (first + 19 * second),
        "checksum: of a first epoch that trains 20,000 samples/s": cost * 20_000,
    }


def _two_passes(decoded: Path) -> tuple[float, float]:
    """Seconds a sample of a pass that checks all and of one that checks none."""
    with _open(decoded) as reader:
        reader.images(np.arange(0, reader.num_samples, 97))  # Opens all shards.
        for shard in reader._source.shards._open.values():  # noqa: SLF001
            shard.images[:, ::4096].sum()  # What follows must not measure page faults.
            shard.verified[:] = 0
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            for _ in reader.batches(reader.start()):
                pass
            seconds.append((time.perf_counter() - started) / reader.num_samples)
    return seconds[0], seconds[1]


def waiting(decoded: Path) -> Figures:
    """A consumer that is busy for 10 ms a batch; the switch of an epoch is among its steps."""
    with _open(decoded) as reader:
        started = time.perf_counter()
        batches = reader.batches(reader.start(), num_epochs=3)
        next(batches)
        first_s = time.perf_counter() - started
        waits = []
        num_steps = reader.num_steps_per_epoch
        for _ in range(num_steps + 20):
            begun = time.perf_counter()
            next(batches)
            waits.append(time.perf_counter() - begun)
            time.sleep(_STEP_S)
    return {
        "start: ms from `batches` to the first batch": first_s * 1e3,
        "waiting for data: share of steps of 10 ms (median)": statistics.median(waits) / _STEP_S,
        "waiting for data: share of steps of 10 ms (mean)": statistics.mean(waits) / _STEP_S,
        "switch of epoch: ms waited, the longest of 5 steps around it": max(
            waits[num_steps - 4 : num_steps + 1]
        )
        * 1e3,
    }


def scale(folder: Path) -> Figures:
    """Opening and seeking among 10^9 samples in 10^5 shards, in a process of its own."""
    target = folder / "large"
    if not (target / "index.arrow").exists():
        _write_large_index(target)
    command = [sys.executable, "-m", "benchmarks.reader.figures", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    open_s, seek_s, mib = map(float, done.stdout.split())
    return {
        "10^9 samples in 10^5 shards: s to open": open_s,
        "10^9 samples in 10^5 shards: s to seek to the middle of an epoch": seek_s,
        "10^9 samples in 10^5 shards: MiB of memory for it": mib,
    }


def _write_large_index(folder: Path) -> None:
    num_shards, num_rows = _LARGE
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "split": ["train"] * num_shards,
            "bucket": list(range(num_shards)),
            "shard": [f"train-{number:06d}.arrow" for number in range(num_shards)],
            "num_rows": [num_rows] * num_shards,
            "num_bytes": [num_rows * 27_648] * num_shards,
            "sha256": [f"{number:064x}" for number in range(num_shards)],
        }
    ).cast(INDEX)
    values = {
        "format": FORMAT,
        "shape": (96, 96, 3),
        "labels": ["a", "b"],
        "num_buckets": 1 << 17,
        "mean": None,
        "std": None,
    }
    write_ipc(folder / "index.arrow", with_metadata(table, values))


def _open_large(folder: Path) -> None:
    plan = training(
        seed=0, batch_size=BATCH_SIZE, num_logical_workers=8, window_shards=16, tail="drop"
    )
    Order("warm", "train", np.array([BATCH_SIZE]), plan).draw_epoch(0).batches(0, 1)
    Path("/proc/self/clear_refs").write_text("5")  # The peak starts anew.
    before = _peak_mib()
    started = time.perf_counter()
    index = open_index(folder)
    order = Order(index.version, "train", index.split("train").num_rows, plan)
    opened = time.perf_counter()
    order.draw_epoch(3).batches(order.num_steps // 2, 1)
    sought = time.perf_counter()
    sys.stdout.write(f"{opened - started} {sought - opened} {_peak_mib() - before}\n")


def _peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def shuffling() -> Figures:
    """How far from a full shuffle windows of 16 shards of 1,000 are, of 1,024,000 samples.

    Shards of decoded data are hash buckets, so which sample is in which is a random draw already;
    the figures are about storage order, which is the worst that can be said. A neighbour is the
    next place of the order: in a full shuffle, the chance that both come from one shard is 1/S.
    """
    num_shards, num_rows = 1024, 1000
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, num_shards * num_rows)
    found: Figures = {}
    for name, window in (("windows of 16", 16), ("a full shuffle", num_shards)):
        plan = training(
            seed=0, batch_size=BATCH_SIZE, num_logical_workers=1, window_shards=window, tail="drop"
        )
        order = Order("v", "train", np.full(num_shards, num_rows), plan)
        epochs = [order.draw_epoch(epoch) for epoch in (0, 1)]
        first, second = (
            epoch.batches(0, order.num_steps).reshape(-1, BATCH_SIZE) for epoch in epochs
        )
        counts = np.apply_along_axis(np.bincount, 1, labels[first], minlength=10)
        expected = BATCH_SIZE / 10
        found[f"shuffle, {name}: chi-square of classes in a batch, by its expectation"] = float(
            ((counts - expected) ** 2 / expected).sum(1).mean() / 9
        )
        together = [len(np.intersect1d(one, second[0])) for one in first]
        found[f"shuffle, {name}: most samples of a batch together in one of the next epoch"] = max(
            together
        )
        moved = np.abs(first.reshape(-1) - np.arange(first.size)).mean() / first.size
        found[f"shuffle, {name}: mean displacement, by that of a random order"] = moved * 3
    return found


if __name__ == "__main__":
    _open_large(Path(sys.argv[1]))
