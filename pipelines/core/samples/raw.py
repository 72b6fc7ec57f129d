"""raw/ as a tree of files, in which an archive counts as unpacked where it lies.

`raw/2026/cats.zip` with the member `cat/1.jpg` is the file `2026/cat/1.jpg`. Endings tell what is
an archive (.zip and .tar, in any case); one inside another stays a file. Nothing is unpacked.

Every file there is, and every member, is listed once; what must not or cannot be read carries a
reason, so that it becomes a rejected row instead of an exception. Costs a stat a file, and the
table of each archive, which is kept in the process (up to a million members in all) for `read`.
Safe to call from any number of threads and processes.
"""

from __future__ import annotations

import os
import re
import stat
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipelines.core.errors import HeadraceError
from pipelines.core.reasons import Reason
from pipelines.core.samples import cells
from pipelines.core.samples.archives import (
    ENDINGS,
    Archive,
    ReadFault,
    check_size,
    open_archive,
    printable,
)

__all__ = ["RawFile", "ReadFault", "list_files", "read"]

_MAX_KEPT_MEMBERS = 1_000_000


class RawFile(NamedTuple):
    """A file of the virtual tree."""

    path: str
    """Below raw/, archives taken as unpacked; NFC, `/` between parts. Where there is a fault, a
    name for people: container/member."""
    container: str
    """The file below raw/ that holds it: itself, or an archive."""
    member: str
    """Its name inside the archive; empty for a loose file."""
    num_bytes: int
    fault: Reason | None = None
    """Why it is not to be read."""
    detail: str = ""


def list_files(raw: Path) -> list[RawFile]:
    """Every file below `raw` and in its archives, sorted by path; no content is read.

    An archive is no file of its own, unless it cannot be read to its end: then it is listed, with a
    fault, besides the members before that point.

    Raises:
        HeadraceError: `raw` is no folder, or a folder in it cannot be listed.
    """
    if not raw.is_dir():
        raise HeadraceError("There is no raw data.", where=str(raw), fix="dvc repro ingest")
    root = raw.resolve()
    files: list[RawFile] = []
    for path in _walk(raw):
        container = path.relative_to(raw).as_posix()
        found = _loose(path, container, root)
        if found.fault is None and container.lower().endswith(ENDINGS):
            files += _members(_archive(path), container)
        else:
            files.append(found)
    return sorted(files, key=lambda file: file[:3])


def read(raw: Path, container: str, member: str, max_bytes: int) -> bytes:
    """The bytes of a listed file.

    Args:
        raw: the folder that was listed.
        container: as listed.
        member: as listed; of a Parquet file, as `cells.cell` names it.
        max_bytes: refuse larger ones, before they are read or decompressed.

    Raises:
        ReadFault: there are none to give: gone, too large, damaged, no permission.
    """
    path = raw / container
    try:
        if member and container.lower().endswith(cells.ENDING):
            return cells.read(path, member, max_bytes)
        if member:
            return _archive(path).read(member, max_bytes)
        with path.open("rb") as file:
            check_size(os.fstat(file.fileno()).st_size, max_bytes)
            return file.read(max_bytes)
    except FileNotFoundError:
        raise ReadFault(Reason.MISSING_FILE, f"there is no {container}") from None
    except OSError as error:
        raise ReadFault(Reason.UNREADABLE, error.strerror or str(error)) from None


def _walk(raw: Path) -> Iterator[Path]:
    """All that is no folder, and links to folders, which are not followed."""

    def give_up(error: OSError) -> None:
        raise HeadraceError(
            "A folder of raw/ cannot be listed.", where=error.filename, found=error.strerror
        )

    for folder, folders, names in os.walk(raw, onerror=give_up):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        yield from (Path(folder, name) for name in (*names, *links))


def _loose(path: Path, container: str, root: Path) -> RawFile:
    def refused(num_bytes: int, reason: Reason, detail: str) -> RawFile:
        name = printable(container)
        return RawFile(name, name, "", num_bytes, reason, detail)

    if printable(container) != container:
        return refused(0, Reason.UNREADABLE, "the file's name is not UTF-8: rename it")
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        if not path.resolve().is_relative_to(root):
            return refused(0, Reason.UNSAFE_PATH, "a link that leads out of raw/")
        if not path.is_file():
            return refused(0, Reason.UNREADABLE, "a link to a folder, or to nothing")
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        return refused(0, Reason.UNREADABLE, "a device, pipe or socket, and no file")
    return RawFile(unicodedata.normalize("NFC", container), container, "", found.st_size)


def _members(archive: Archive, container: str) -> Iterator[RawFile]:
    folder = container.rpartition("/")[0]
    for member, where in archive.members.items():
        inside = _inside(member, is_zip=where.method != -1)
        if inside is None:
            detail = "an absolute path, or one that leaves its folder"
            place = f"{container}/{member}"
            yield RawFile(place, container, member, where.num_bytes, Reason.UNSAFE_PATH, detail)
        else:
            path = unicodedata.normalize("NFC", f"{folder}/{inside}" if folder else inside)
            yield RawFile(path, container, member, where.num_bytes)
    for fault in archive.faults:
        place = f"{container}/{fault.member}" if fault.member else container
        yield RawFile(place, container, *fault)


def _inside(member: str, *, is_zip: bool) -> str | None:
    """A member's path below the folder of its archive; None where it would leave that."""
    # Zip files made on Windows separate folders by backslashes; in a tar they are part of a name.
    path = member.replace("\\", "/") if is_zip else member
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or path.startswith("/") or re.match("[A-Za-z]:/", path):
        return None
    return "/".join(parts)


class _Slot:
    """A place in the memory of archives; its lock lets one thread make the table, once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.archive: Archive | None = None


_kept: OrderedDict[tuple[str, int, int], _Slot] = OrderedDict()
_kept_lock = threading.Lock()


def _archive(path: Path) -> Archive:
    """The table of an archive: from memory, if the file is still the one that was looked at."""
    found = path.stat()
    key = (str(path), found.st_size, found.st_mtime_ns)
    with _kept_lock:
        slot = _kept.setdefault(key, _Slot())
        _kept.move_to_end(key)
    with slot.lock:
        if slot.archive is not None:
            return slot.archive
        archive = slot.archive = open_archive(path)
    with _kept_lock:
        _drop_oldest()
    return archive


def _drop_oldest() -> None:
    """Forget archives that were not used for longest, until the others fit; the last one stays."""
    sizes = {key: len(slot.archive.members) for key, slot in _kept.items() if slot.archive}
    total = sum(sizes.values())
    for key in list(_kept)[:-1]:
        if total <= _MAX_KEPT_MEMBERS:
            break
        total -= sizes.get(key, 0)
        del _kept[key]
