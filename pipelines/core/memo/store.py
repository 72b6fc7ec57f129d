"""The memo on the disk: results by fingerprint, each checked before it is used again.

`.memo/<fingerprint>/` holds the files of one result and `manifest`, with the SHA-256 of each file
and of itself. Whatever happens to an entry (a flipped bit, a file that is gone, a run killed while
writing, a power cut), it is then no entry any more, and is made anew.

- Entries appear by a rename, and go by one; no lock is needed, and any number of runs share a memo.
  Nothing is flushed to the disk: after a power cut the checksums tell what is missing.
- Files of 1 MiB and more are hard links, read-only for all. That can be trusted since neither DVC
  nor Headrace ever writes into a file (they remove and replace), and since what somebody does
  change in place fails its checksum before it is used again. DVC with `cache.type: reflink,copy`
  puts a copy in the place of a linked out when it commits, so what people then change is no part
  of the memo; with `hardlink` all three are one file, and DVC knows its hash by its inode. Smaller
  files, and all files where a link cannot be made, are copies.
- Uses are counted in runs, not in time, so that no jump of a clock matters: the number of the run
  that used an entry last stands as the modification time of its manifest, in seconds since 1970.
- Where the memo is larger than it may be, what was used longest ago goes first.

Deleting all of it at any time costs work, and nothing else. A fetch costs reading the files once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipelines.core.storage import sha256_file

LINK_BYTES = 1 << 20
_MANIFEST = "manifest"
_TEMPORARY = ".tmp-"
_READ_ONLY = 0o444

_unswept: defaultdict[Path, int] = defaultdict(int)
"""Bytes that this process put into a memo since it last looked at its size."""
_sweeping = threading.Lock()


class Missing(Exception):  # noqa: N818 - no error: it is made anew
    """There is no such entry, or none that is whole."""


class Entry(NamedTuple):
    """What is stored under one fingerprint; sorts by use."""

    used: int
    """Number of the run that used it last."""
    name: str
    num_bytes: int


@dataclass(frozen=True)
class Store:
    """A memo, as one run of a stage sees it; can be sent to other processes.

    Attributes:
        folder: of the entries; need not be there.
        max_bytes: how large it may be.
        run: the number of this run.
    """

    folder: Path
    max_bytes: int
    run: int

    def fetch(self, fingerprint: str, into: Path) -> None:
        """Put the files of an entry into the folder `into`, and check them there.

        Raises:
            Missing: there is none, or none that is whole; `into` may then hold anything.
        """
        entry = self.folder / fingerprint
        try:
            for name, sha256 in _read_manifest(entry, fingerprint).items():
                _place_checked(entry / name, into / name, sha256)
        except (Missing, OSError):
            if entry.exists():
                self._drop(fingerprint)
            raise Missing from None
        with contextlib.suppress(OSError):  # A memo that may only be read is of use all the same.
            self._note_use(entry / _MANIFEST)

    def put(self, fingerprint: str, folder: Path) -> None:
        """Keep the files of a folder, which nobody else may change meanwhile.

        Large ones become read-only. Where another run was first, its entry stays.

        Raises:
            OSError: it could not be kept, for whatever reason: nothing was.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._make_room(sum(path.stat().st_size for path in folder.iterdir()))
        with _temporary(self.folder) as making:
            files = {path.name: sha256_file(path) for path in sorted(folder.iterdir())}
            for name in files:
                _place(folder / name, making / name)
            _write_manifest(making, fingerprint, files)
            self._note_use(making / _MANIFEST)
            try:
                making.rename(self.folder / fingerprint)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise

    def sweep(self) -> None:
        """Remove what was used longest ago until the rest fits, and what killed runs left."""
        self._remove_orphans()
        self._shrink(self.max_bytes, sorted(entries(self.folder)))

    def _shrink(self, max_bytes: int, found: Sequence[Entry], *, spare: int | None = None) -> bool:
        """Remove entries in their order until the rest fits; whether it then does.

        Those that the run `spare` or later ones used stay.
        """
        left = sum(entry.num_bytes for entry in found)
        for entry in found:
            if left <= max_bytes or (spare is not None and entry.used >= spare):
                break
            self._drop(entry.name)
            left -= entry.num_bytes
        return left <= max_bytes

    def _make_room(self, num_bytes: int) -> None:
        """Look at the size of the memo whenever a sixteenth of the limit was added."""
        with _sweeping:
            _unswept[self.folder] += num_bytes
            if _unswept[self.folder] < self.max_bytes / 16:
                return
            found = sorted(entries(self.folder))
            if not self._shrink(self.max_bytes - num_bytes, found, spare=self.run):
                what = "it is full of what this run uses; HEADRACE_MEMO_MAX_GIB is its size"
                raise OSError(errno.EDQUOT, what, str(self.folder))
            _unswept[self.folder] = 0

    def _note_use(self, manifest: Path) -> None:
        os.utime(manifest, (self.run, self.run))

    def _drop(self, name: str) -> None:
        with contextlib.suppress(OSError), _temporary(self.folder) as aside:
            (self.folder / name).rename(aside / "dropped")

    def _remove_orphans(self) -> None:
        """Remove temporary folders whose writer is dead: it held a lock that is free now."""
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            with contextlib.suppress(OSError), _locked(path):
                shutil.rmtree(path, ignore_errors=True)


def opened(folder: Path, max_bytes: int) -> Store:
    """A memo for a new run, which gets the next number."""
    last = max((entry.used for entry in entries(folder)), default=0)
    return Store(folder, max_bytes, last + 1)


def entries(folder: Path) -> Iterator[Entry]:
    """What a memo holds, in no order; an entry that goes meanwhile is left out."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if not entry.name.startswith(_TEMPORARY):
            with contextlib.suppress(OSError):
                sizes = [path.stat().st_size for path in entry.iterdir()]
                used = int((entry / _MANIFEST).stat().st_mtime)
                yield Entry(used, entry.name, sum(sizes))


def _place_checked(source: Path, target: Path, sha256: str) -> None:
    _place(source, target)
    if sha256_file(target) != sha256:
        raise Missing


def _place(source: Path, target: Path) -> None:
    """Link a large file, copy a small one."""
    if source.stat().st_size >= LINK_BYTES:
        with contextlib.suppress(OSError):  # Another file system, too many links, not allowed.
            source.chmod(_READ_ONLY)
            target.hardlink_to(source)
            return
    shutil.copyfile(source, target)


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[Path]:
    """A folder of one's own inside `folder`, locked while it is used and gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder))
    try:
        with _locked(path):
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder.

    Raises:
        OSError: somebody else holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _write_manifest(entry: Path, fingerprint: str, files: Mapping[str, str]) -> None:
    body = json.dumps({"fingerprint": fingerprint, "files": files}, sort_keys=True)
    checksum = hashlib.sha256(body.encode()).hexdigest()
    (entry / _MANIFEST).write_text(f"{checksum}\n{body}")


def _read_manifest(entry: Path, fingerprint: str) -> dict[str, str]:
    """SHA-256 of each file, by name.

    Raises:
        FileNotFoundError: there is no entry.
        Missing: it is not what was written, or not of this fingerprint.
    """
    checksum, _, body = (entry / _MANIFEST).read_bytes().partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise Missing
    told = json.loads(body)
    if told["fingerprint"] != fingerprint:
        raise Missing
    return dict(told["files"])
