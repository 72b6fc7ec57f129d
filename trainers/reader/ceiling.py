"""What a machine gives, measured without the reader: a store's bytes, and memory's.

Rates are bytes/s. Each measurement ends after about the seconds that it is given.
"""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np

_BLOCK_BYTES = 1 << 20
_NUM_THREADS = 4
_SOURCE_BYTES = 1 << 30  # Beyond the processor's caches, and within most machines' memory.


def forget(paths: Sequence[Path]) -> None:
    """Ask the page cache to drop files; those that are mapped, or in memory only, stay."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk(paths: Sequence[Path], limit_s: float) -> float:
    """Threads read files from end to end, none from the page cache: one alone leaves disks idle."""
    forget(paths)
    started = time.perf_counter()
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        num_bytes = sum(threads.map(lambda path: _read(path, started + limit_s), paths))
    return num_bytes / (time.perf_counter() - started)


def store(url: str, names: Sequence[str], num_threads: int, limit_s: float) -> float:
    """Threads download files of the folder at `url`, whole; none begins after `limit_s`."""
    filesystem, root = fsspec.core.url_to_fs(url)
    started = time.perf_counter()

    def download(name: str) -> int:
        if time.perf_counter() - started > limit_s:
            return 0
        return len(filesystem.cat_file(f"{root.rstrip('/')}/{name}"))

    with ThreadPoolExecutor(num_threads) as threads:
        num_bytes = sum(threads.map(download, names))
    return num_bytes / (time.perf_counter() - started)


def memory(paths: Sequence[Path], batch_bytes: int, limit_s: float) -> float:
    """One thread copies `batch_bytes` from random offsets of cached files into one buffer."""
    sources, total = [], 0
    for path in paths:
        if total < _SOURCE_BYTES and path.stat().st_size:
            sources.append(np.memmap(path, np.uint8, "r"))
            total += len(sources[-1])
            _read(path, np.inf)
    sizes = np.array([len(source) for source in sources])
    rng = np.random.default_rng(0)
    picks = rng.choice(len(sources), 1024, p=sizes / total)
    target = np.empty(batch_bytes, np.uint8)
    num_bytes, started = 0, time.perf_counter()
    while time.perf_counter() - started < limit_s:
        for pick in picks.tolist():
            size = min(batch_bytes, len(sources[pick]))
            offset = int(rng.integers(0, len(sources[pick]) - size + 1))
            target[:size] = sources[pick][offset : offset + size]
            num_bytes += size
            if time.perf_counter() - started >= limit_s:
                break
    return num_bytes / (time.perf_counter() - started)


def _read(path: Path, end: float) -> int:
    """Bytes read until `end`."""
    block = bytearray(_BLOCK_BYTES)
    num_bytes = 0
    with path.open("rb", buffering=0) as file:
        while time.perf_counter() < end and (num := file.readinto(block)):
            num_bytes += num
    return num_bytes
