"""The reader beside what storage gives: a cold disk, and an S3 server on loopback.

Cold means that the page cache was asked to drop the files; a disk of a virtual machine may still
have them in a cache of its own, for both sides alike. The S3 server is moto in a process of its
own, which is slow: what counts is the share of what bare downloads by as many threads get from it.
"""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import fsspec
import torch

from benchmarks.reader.data import Workload, write_decoded
from trainers.reader.loader import Placement, Reader
from trainers.reader.order import training
from trainers.reader.remote import NUM_THREADS

_BATCH_SIZE = 256
_ROUNDS = 5
_BLOCK_BYTES = 1 << 20
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Of the server on loopback, which checks none."""
_SMALL = Workload("96x96x3-small", (96, 96, 3), 4096)


def measure(decoded: Path, folder: Path) -> dict[str, float]:
    """All figures, by name."""
    with _moto() as address:
        return {**cold(decoded), **bucket(write_decoded(folder, _SMALL), address)}


def cold(decoded: Path) -> dict[str, float]:
    """One pass from a cold page cache, beside reading the same files from end to end."""

    def drop() -> None:
        for path in decoded.iterdir():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def end_to_end() -> None:
        drop()
        block = bytearray(_BLOCK_BYTES)
        for path in sorted(decoded.glob("*.arrow")):
            with path.open("rb", buffering=0) as file:
                while file.readinto(block):
                    pass

    def one_pass() -> None:
        drop()
        _read_all(decoded)

    ours, bare = _rounds(one_pass, end_to_end)
    return {"cold disk: speed of a shuffled pass, by reading the files end to end": bare / ours}


def bucket(decoded: Path, address: str) -> dict[str, float]:
    """One pass from S3 with an empty cache, beside downloads alone."""
    os.environ |= {**CREDENTIALS, "AWS_ENDPOINT_URL": address}
    store = fsspec.filesystem("s3")
    store.mkdir("bench")
    store.put(f"{decoded}/", "bench/decoded/", recursive=True)
    names = store.ls("bench/decoded", detail=False)

    def downloads() -> None:
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            list(threads.map(store.cat_file, names))

    def one_pass() -> None:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["HEADRACE_CACHE_FOLDER"] = cache
            _read_all("s3://bench/decoded")

    ours, bare = _rounds(one_pass, downloads)
    return {"S3 on loopback: speed of a shuffled pass, by downloads alone": bare / ours}


def _rounds(ours: Callable[[], None], bare: Callable[[], None]) -> tuple[float, float]:
    """Median seconds of each, in turns."""
    seconds: dict[Callable[[], None], list[float]] = {ours: [], bare: []}
    for _ in range(_ROUNDS):
        for function, taken in seconds.items():
            started = time.perf_counter()
            function()
            taken.append(time.perf_counter() - started)
    return statistics.median(seconds[ours]), statistics.median(seconds[bare])


def _read_all(source: Path | str) -> None:
    plan = training(
        seed=0, batch_size=_BATCH_SIZE, num_logical_workers=1, window_shards=4, tail="drop"
    )
    place = Placement(0, 1, num_threads=2, prefetch_batches=4, device=torch.device("cpu"))
    with Reader(source, "train", plan, place) as reader:
        for _ in reader.batches(reader.start()):
            pass


@contextmanager
def _moto() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()
