"""Bringing one file of a source into raw/: copied, downloaded, or kept from the one there was.

Downloads collect in a state folder outside of raw/: `ID.part` while under way, `ID.done` once whole
and checked, with `ID.json` to say what it is. ID names the URL and the version that its server
gives, so a killed run goes on where it was and never continues another version. Files that were
fetched by an earlier run are taken from the old raw/, after their SHA-256 was compared; files of
this machine too, after every byte was.

A compressed tar (.tar.gz, .tgz, .tar.bz2, .tbz2, .tar.xz, .txz) is unpacked to a plain .tar: it is
read in place later, and inside compressed data there is no place to go to. Its checksum is that of
the file as it came.
"""

from __future__ import annotations

import bz2
import filecmp
import gzip
import hashlib
import json
import lzma
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import HeadraceError
from pipelines.core.sources.files import SourceFile, copy_local
from pipelines.core.sources.remote import Patience, RemoteFile, download
from pipelines.core.storage import fsync_path, sha256_file, write_text

_OPENERS: Mapping[str, Callable[..., Any]] = {
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.bz2": bz2.open,
    ".tbz2": bz2.open,
    ".tar.xz": lzma.open,
    ".txz": lzma.open,
}


@dataclass(frozen=True)
class Fetched:
    """What came, and what lies in raw/; they differ for a compressed tar only."""

    sha256: str
    num_bytes: int
    stored_sha256: str
    stored_num_bytes: int


@dataclass(frozen=True)
class Item:
    """One file to bring."""

    file: SourceFile
    to: str
    """Path below raw/."""
    sha256: str | None
    """Of the file as it comes, where the card states it."""
    unpacked_from: str = ""
    """Ending of a compressed tar; empty for all others."""

    @property
    def identity(self) -> str:
        """Names this version of this file."""
        parts = [self.file.place, self.file.num_bytes, self.file.version, self.sha256]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    @property
    def is_remote(self) -> bool:
        """Whether it is downloaded, rather than copied on this machine."""
        return isinstance(self.file.here, RemoteFile)

    @property
    def is_identified(self) -> bool:
        """Whether an equal identity means equal content."""
        return self.file.version is not None or self.sha256 is not None


@dataclass(frozen=True)
class Folders:
    """Where things lie."""

    out: Path
    """The raw/ that is being made."""
    previous: Path
    """The raw/ of an earlier run, which may be missing."""
    state: Path
    """Downloads."""


def compressed_tar(name: str) -> str:
    """The ending that says that `name` is a compressed tar, as it is in _OPENERS, or nothing."""
    return next((ending for ending in _OPENERS if name.lower().endswith(ending)), "")


def fetch(item: Item, known: Fetched | None, folders: Folders, patience: Patience) -> Fetched:
    """Bring one file to its place below `folders.out`.

    Args:
        item: what.
        known: what an earlier run fetched under the same identity.
        folders: from where and to where.
        patience: for downloads.

    Raises:
        HeadraceError: it cannot be had, or is not what the card says.
    """
    target = folders.out / item.to
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(item.file.here, Path):
        return _from_here(item, item.file.here, target, folders.previous / item.to)
    done = folders.state / f"{item.identity}.done"
    note = done.with_suffix(".json")
    if item.is_identified and done.exists() and note.exists():
        _link(done, target)
        return Fetched(**json.loads(note.read_bytes()))
    if known is None and item.sha256 and item.file.num_bytes is not None and not item.unpacked_from:
        known = Fetched(item.sha256, item.file.num_bytes, item.sha256, item.file.num_bytes)
    kept = folders.previous / item.to
    if known and item.is_identified and kept.is_file() and sha256_file(kept) == known.stored_sha256:
        _link(kept, target)
        return known
    fetched = _download(item, item.file.here, done, patience)
    _link(done, target)
    return fetched


def _from_here(item: Item, path: Path, target: Path, kept: Path) -> Fetched:
    if not item.unpacked_from:
        if _is_equal(path, kept):
            _link(kept, target)  # The same file, whose hash DVC and `clean` know.
            sha256 = sha256_file(target)
        else:
            sha256 = copy_local(path, target)
        num_bytes = target.stat().st_size
        _check(item, sha256, num_bytes)
        return Fetched(sha256, num_bytes, sha256, num_bytes)
    sha256, num_bytes = sha256_file(path), path.stat().st_size
    _check(item, sha256, num_bytes)
    _unpack(item, path, target)
    return Fetched(sha256, num_bytes, sha256_file(target), target.stat().st_size)


def _is_equal(path: Path, kept: Path) -> bool:
    """Whether two files have the same bytes; not if either cannot be read."""
    try:
        return filecmp.cmp(path, kept, shallow=False)
    except OSError:
        return False


def _download(item: Item, file: RemoteFile, done: Path, patience: Patience) -> Fetched:
    part = done.with_suffix(".part")
    if not item.is_identified:
        part.unlink(missing_ok=True)  # It may be of another version, and nothing would tell.
    download(file, part, patience)
    fsync_path(part)
    sha256, num_bytes = sha256_file(part), part.stat().st_size
    try:
        _check(item, sha256, num_bytes)
        fetched = Fetched(sha256, num_bytes, sha256, num_bytes)
        if item.unpacked_from:
            plain = done.with_suffix(".tar")
            _unpack(item, part, plain)
            fsync_path(plain)
            fetched = Fetched(sha256, num_bytes, sha256_file(plain), plain.stat().st_size)
            plain.replace(part)
    except HeadraceError:
        part.unlink()
        raise
    write_text(done.with_suffix(".json"), json.dumps(asdict(fetched)))
    part.replace(done)
    return fetched


def _check(item: Item, sha256: str, num_bytes: int) -> None:
    listed = item.file.num_bytes
    if listed is not None and num_bytes != listed:
        raise HeadraceError(
            "The source has another size than was listed: it changed while it was read.",
            where=item.file.place,
            expected=f"{listed:,} bytes",
            found=f"{num_bytes:,} bytes",
            fix="run the command again once it is at rest",
        )
    if item.sha256 not in (None, sha256):
        raise HeadraceError(
            "The source is not the file that the card names.",
            where=item.file.place,
            expected=f"sha256: {item.sha256}",
            found=f"sha256: {sha256}",
            fix="if the new content is right, put the sha256 that was found into the card",
        )


def _unpack(item: Item, path: Path, target: Path) -> None:
    damage: tuple[Any, ...] = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
    with target.open("wb") as out:
        try:
            if path.stat().st_size == 0:  # Which gzip takes for a stream of nothing.
                raise EOFError("the file is empty")
            with _OPENERS[item.unpacked_from](path, "rb") as source:
                shutil.copyfileobj(source, out, 1 << 20)
        except damage as error:
            raise _damaged(item, error) from None
        except OSError as error:
            if error.errno is not None:  # Such as a full disk; bz2 tells damage without a number.
                raise
            raise _damaged(item, error) from None


def _damaged(item: Item, error: Exception) -> HeadraceError:
    return HeadraceError(
        "The compressed archive is cut or damaged.",
        where=item.file.place,
        found=str(error) or type(error).__name__,
        fix="put a whole one in its place, and run the command again",
    )


def _link(source: Path, target: Path) -> None:
    """Give a finished file a second name; where it cannot have one, copy it."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
