"""The files of a source, whether it lies on this machine or elsewhere, and how to get one of them.

A listing says enough to tell afterwards whether the source changed while it was read: sizes, and
checksums or times. Links in local folders are followed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipelines.core.errors import HeadraceError
from pipelines.core.sources.remote import Patience, RemoteFile, is_remote, list_url, local_path
from pipelines.core.storage import CHUNK_BYTES, sha256_file

_FICLONE = 0x40049409  # linux/fs.h: share the blocks of another file


@dataclass(frozen=True)
class SourceFile:
    """A file of a source."""

    place: str
    """URL or path, for people."""
    relative: str
    """Path below the source; empty where the source is a file."""
    num_bytes: int | None
    """None: its server does not say."""
    version: str | None
    """Changes when the content does; None: its server says nothing of the kind."""
    here: Path | RemoteFile
    """How to get at it."""


def list_source(url: str, folder: Path, patience: Patience) -> list[SourceFile]:
    """The files of a source, sorted by path below it.

    Args:
        url: a path, relative to `folder` or absolute, or a URL.
        folder: the card's.
        patience: for a remote source.

    Raises:
        HeadraceError: it is not there or cannot be read, or it holds no file.
    """
    if is_remote(url):
        files = [
            SourceFile(_place(file), file.relative, file.num_bytes, file.version, file)
            for file in list_url(url, patience)
        ]
    else:
        files = sorted(_local_files(local_path(url, folder)), key=lambda file: file.relative)
    if not files:
        where = url if is_remote(url) else str(local_path(url, folder))
        fix = f"put the data into {where}, or correct the url in the card"
        raise HeadraceError("The source holds no file.", where=where, fix=fix)
    return files


def _place(file: RemoteFile) -> str:
    return f"{file.url.rstrip('/')}/{file.relative}" if file.relative else file.url


def _local_files(root: Path) -> Iterator[SourceFile]:
    if not root.is_dir():
        yield _local_file(root, "")
        return

    def give_up(error: OSError) -> None:
        raise _unreadable(Path(error.filename), error)

    seen = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=give_up):
        found = Path(folder).stat()
        if (found.st_dev, found.st_ino) in seen:  # A link to where we have been.
            folders.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        for name in names:
            path = Path(folder, name)
            yield _local_file(path, path.relative_to(root).as_posix())


def _local_file(path: Path, relative: str) -> SourceFile:
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise HeadraceError("A source holds what is neither file nor folder.", where=str(path))
    version = f"{found.st_ino}:{found.st_mtime_ns}"
    return SourceFile(str(path), relative, found.st_size, version, path)


def _unreadable(path: Path, error: OSError) -> HeadraceError:
    if isinstance(error, FileNotFoundError):
        fix = "correct the url in the card (relative ones start at its folder), or put it back"
        return HeadraceError("The source is not there.", where=str(path), fix=fix)
    return HeadraceError("The source may not be read.", where=str(path), found=error.strerror)


def copy_local(path: Path, target: Path) -> str:
    """Copy a file and return its SHA-256; shares blocks where the file system can.

    Raises:
        HeadraceError: the file is gone or may not be read.
    """
    try:
        source = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from None
    digest = hashlib.sha256()
    with source, target.open("wb") as out:
        try:
            fcntl.ioctl(out.fileno(), _FICLONE, source.fileno())
        except OSError:
            while data := source.read(CHUNK_BYTES):
                digest.update(data)
                out.write(data)
            return digest.hexdigest()
    return sha256_file(target)
