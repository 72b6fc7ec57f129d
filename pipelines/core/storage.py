"""Files that are there in full or not at all.

Everything Headrace writes goes through here: into a temporary sibling, flushed to the disk, then
renamed. A process killed at any moment leaves either the old file (or folder) or the new one, and
at worst a `.tmp-*` sibling that the next run removes. Costs one fsync a file and one a folder.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHUNK_BYTES = 1 << 20
_MANY_PATHS = 200


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_path(path: Path) -> None:
    """Flush a file's data, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, deepest first.

    Many files are flushed with the whole file system, in one call: 5,000 small ones took 0.1 s
    that way, and 4 s one by one. A few are not, since that call waits for what others write too.
    """
    paths = [
        Path(parent, name)
        for parent, _, names in os.walk(folder, topdown=False)
        for name in (*names, "")
    ]
    if len(paths) > _MANY_PATHS:
        _sync_file_system(folder)
        return
    for path in paths:
        fsync_path(path)


def _sync_file_system(folder: Path) -> None:
    """Linux's syncfs(2), which Python does not have."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)


def temporary_sibling(path: Path) -> Path:
    """The `.tmp-` name beside `path`.

    Same file system, so that a rename is atomic; ignored by git and DVC.
    """
    return path.with_name(f".tmp-{path.name}")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; on success it is flushed and renamed to `path`.

    On an exception the temporary file is removed and `path` stays as it was. Several writers of one
    path wait for each other, and the last one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    with _owned(temporary):
        try:
            yield temporary
            fsync_path(temporary)
            temporary.replace(path)
            fsync_path(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def _owned(temporary: Path) -> Iterator[None]:
    """Make a file and hold its lock; what another writer has locked will be renamed by it."""
    while True:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_at(descriptor, temporary):
                yield
                return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path`, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 to `path`, atomically."""
    write_bytes(path, text.encode())


def replace_folder(new: Path, target: Path) -> None:
    """Flush the finished folder `new` and put it in the place of `target`, which may exist.

    A rename cannot replace a folder that holds files, so an old `target` first steps aside to a
    `.tmp-` name. Killed between the two renames, `target` is missing and is built again; it is
    never half old and half new.
    """
    fsync_tree(new)
    aside = target.with_name(f".tmp-old-{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        target.rename(aside)
    new.rename(target)
    fsync_path(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def state_folder() -> Path:
    """`.state/` of the main repository: downloads and checkpoints, which are no outs.

    DVC sets DVC_ROOT to the main repository even in `exp run --temp` and queue runs, which work in
    a copy.
    """
    return Path(os.environ.get("DVC_ROOT", ".")) / ".state"
