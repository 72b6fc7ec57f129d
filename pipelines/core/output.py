"""An output of a stage: written by one run at a time, and there in full or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from pipelines.core.errors import HeadraceError
from pipelines.core.storage import fsync_path, replace_folder


def place(folder: Path, out: Path) -> None:
    """Put what a stage wrote in its place: the folder, or the file in it that `out` names."""
    if not out.suffix:
        replace_folder(folder, out)
        return
    file = folder / out.name
    fsync_path(file)
    file.replace(out)
    fsync_path(out.parent)
    shutil.rmtree(folder)


@contextlib.contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Hold the lock of an output; the kernel frees it when the process ends, however it ends.

    Raises:
        HeadraceError: another process holds it; names its process id. Or the folder of the output
            is read-only.
    """
    with _lock_file(out) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise HeadraceError(
                "Another run is writing the same output.",
                where=str(out),
                found=f"process {file.read().strip() or 'unknown'} holds its lock",
                fix="wait for it, or end that process",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock_file(out: Path) -> TextIO:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return out.with_name(f".lock-{out.name}").open("a+")
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise HeadraceError(
            "The output may not be written.",
            where=str(out),
            found=f"{error.filename}: {error.strerror}",
            fix=f"make the folder {out.parent} writable (`chmod u+w {out.parent}`, or its mount)",
        ) from None


@contextlib.contextmanager
def no_space_told(out: Path) -> Iterator[None]:
    """Turn a full disk into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free_mib = shutil.disk_usage(out.parent).free >> 20
        raise HeadraceError(
            "There is no space left on the disk; nothing was written.",
            where=str(error.filename or out),
            found=f"{free_mib} MiB free",
            fix="free some (`dvc gc --workspace` removes unused cache) and run the command again",
        ) from error
