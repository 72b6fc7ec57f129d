"""A folder of shards from a bucket: one per node, shared by its processes, never above its cap.

A shard lies under the SHA-256 of its bytes, so versions of a dataset cannot mix, and what they have
in common is kept once. Everything else follows from locks that the kernel drops when their holder
ends, however it ends (flock(2)), so the folder must be on a local disk:

- `lock`: held for the moment in which room is made; the cap is checked and kept under it.
- `tmp-<sha256>`: being fetched by the process that holds its lock; others wait for it rather than
  fetch the shard too. It takes up its full size from the beginning. One that nobody holds was left
  by a killed process and is removed, never used.
- `<sha256>`: whole and verified. Readers hold a shared lock as long as they have it mapped; what is
  so held is never removed, so a removed shard's bytes are really free.
- `reader-*`: held by each open reader; says what it needs at least.

Eviction takes what is needed furthest in the future (Belady, "A study of replacement algorithms for
a virtual-storage computer", IBM Systems Journal 1966), which the caller ranks.

Costs a listing of the folder for each shard fetched.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple
from uuid import uuid4

from pipelines.core.errors import HeadraceError

Ranking = Callable[[str, float], float]
"""From a SHA-256 and the time of its last use (s) to when it is needed next; inf: never."""

_POLL_S = 0.02
_SHA256 = re.compile("[0-9a-f]{64}")
_GIB = 1 << 30


class Blob(NamedTuple):
    """What is kept: some bytes, by their digest."""

    sha256: str
    num_bytes: int


class Closed(Exception):  # noqa: N818 - it is no fault
    """The cache was closed while something waited for it."""


class Cache:
    """The cache in `folder`, as one reader of one process uses it. Safe to use from threads.

    Args:
        folder: on a local disk; made where it is missing.
        max_bytes: the cap of all shards in it, finished or not.
        closing: ends all waiting when it is set.
    """

    def __init__(self, folder: Path, max_bytes: int, closing: threading.Event) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._closing = closing
        folder.mkdir(parents=True, exist_ok=True)

    def register(self, num_bytes: int, group: str) -> BinaryIO:
        """Announce that this reader holds up to `num_bytes` at a time, until the file is closed.

        Args:
            num_bytes: of all shards that it reads from or has fetched for what comes next.
            group: readers of one group read the same at the same time and count once.

        Raises:
            HeadraceError: the cap is too small for it, and the other readers that are open.
        """
        with self._locked():
            others = {name: size for name, size in self._readers() if name != group}
            total = num_bytes + sum(others.values())
            if total > self.max_bytes:
                raise self._too_small(num_bytes, sum(others.values()))
            file = (self.folder / f"reader-{uuid4().hex}").open("w+b")
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps([group, num_bytes]).encode())
            file.flush()
        return file

    def get(self, blob: Blob, write: Callable[[int], None], ranking: Ranking) -> BinaryIO:
        """The file of `blob`, locked against removal until it and all mappings of it are closed.

        Args:
            blob: what is wanted.
            write: fetches it into a file descriptor, and verifies it; not called where another
                process has done so.
            ranking: what to evict, should there be no room.

        Raises:
            Closed: while it waited for room, or for another process.
            HeadraceError: no space left on the disk, or what `write` raised.
        """
        assert _SHA256.fullmatch(blob.sha256), "an index of this format has such digests only"
        while True:
            if (file := self._find(blob)) or (file := self._make(blob, write, ranking)):
                return file
            if self._closing.wait(_POLL_S):
                raise Closed

    def seconds_since_written(self, sha256: str) -> float:
        """How long ago the process that fetches this wrote last; inf: none does."""
        try:
            return time.time() - (self.folder / f"tmp-{sha256}").stat().st_mtime
        except FileNotFoundError:
            return math.inf

    def _find(self, blob: Blob) -> BinaryIO | None:
        try:
            file = (self.folder / blob.sha256).open("rb")
        except FileNotFoundError:
            return None
        fcntl.flock(file, fcntl.LOCK_SH)
        found = os.fstat(file.fileno())
        # It may have been removed between the two calls; a shard of another length is damaged.
        if found.st_nlink == 0 or found.st_size != blob.num_bytes:
            if found.st_nlink:
                (self.folder / blob.sha256).unlink(missing_ok=True)
            file.close()
            return None
        os.utime(file.fileno())
        return file

    def _make(self, blob: Blob, write: Callable[[int], None], ranking: Ranking) -> BinaryIO | None:
        """Fetch it, unless another is at it or there is no room at the moment."""
        temporary, final = self.folder / f"tmp-{blob.sha256}", self.folder / blob.sha256
        with self._locked():
            if final.exists() or not _remove_unless_locked(temporary):
                return None
            if not self._make_room(blob.num_bytes, ranking):
                return None
            file = temporary.open("x+b")
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                with self._no_space_told():
                    os.posix_fallocate(file.fileno(), 0, blob.num_bytes)
            except BaseException:
                temporary.unlink()
                file.close()
                raise
        try:
            write(file.fileno())
            os.fdatasync(file.fileno())
        except BaseException:
            with self._locked():
                temporary.unlink()
            file.close()
            raise
        with self._locked():
            temporary.rename(final)
            fcntl.flock(file, fcntl.LOCK_SH)
        with file:  # Its lock is held until the next one is.
            return self._find(blob)

    def _make_room(self, num_bytes: int, ranking: Ranking) -> bool:
        """Remove what is needed last until `num_bytes` more fit; False: too much is in use."""
        finished: list[tuple[float, float, int, Path]] = []
        total = num_bytes
        for path in list(self.folder.iterdir()):
            if path.name.startswith("tmp-") and _remove_unless_locked(path):
                continue
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            if not path.name.startswith(("lock", "reader-")):
                total += found.st_size
            if _SHA256.fullmatch(path.name):
                rank = ranking(path.name, found.st_mtime)
                finished.append((-rank, found.st_mtime, found.st_size, path))
        for _, _, size, path in sorted(finished):
            if total <= self.max_bytes:
                break
            if _remove_unless_locked(path):
                total -= size
        return total <= self.max_bytes

    def _readers(self) -> Iterator[tuple[str, int]]:
        for path in self.folder.glob("reader-*"):
            if not _remove_unless_locked(path):
                with contextlib.suppress(FileNotFoundError):
                    group, num_bytes = json.loads(path.read_bytes())
                    yield group, num_bytes

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _too_small(self, num_bytes: int, others: int) -> HeadraceError:
        beside = f", {others / _GIB:.4g} GiB of them for other open readers" if others else ""
        needed = (num_bytes + others) / _GIB
        return HeadraceError(
            "The cache is too small for the shards that are read from at a time",
            where=f"{self.folder} (cluster.yaml: cache_max_gib)",
            expected=f"at least {needed:.4g} GiB{beside}",
            found=f"{self.max_bytes / _GIB:.4g} GiB",
            fix=f"export HEADRACE_CACHE_MAX_GIB={needed * 1.01:.4g}, or lower window_shards in"
            " params.yaml",
        )

    @contextlib.contextmanager
    def _no_space_told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            free = shutil.disk_usage(self.folder).free / _GIB
            raise HeadraceError(
                "There is no space left on the disk for the cache",
                where=str(self.folder),
                expected=f"room for {self.max_bytes / _GIB:.4g} GiB (cache_max_gib)",
                found=f"{free:.4g} GiB free",
                fix="free some, lower HEADRACE_CACHE_MAX_GIB, or set HEADRACE_CACHE_FOLDER to"
                " another disk",
            ) from error


def _remove_unless_locked(path: Path) -> bool:
    """Remove a file that no process holds; whether it is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True
