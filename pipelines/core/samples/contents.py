"""What is in the files of raw/: the SHA-256 of each, without reading again what was read before.

`.state/contents/` keeps, for each raw folder, the digests of its files and archive members, with
the size, inode and time of modification of each file. A file of which all are the same is taken
for unchanged, as DVC takes it. What was changed within the last second (or, by the clock, in the
future) is read again next time: a further change might not show.

An archive that changed is read as a whole, which costs a twentieth of looking at its images.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.memo import code
from pipelines.core.reasons import Reason
from pipelines.core.samples import raw
from pipelines.core.samples.raw import RawFile
from pipelines.core.stage import Job
from pipelines.core.storage import state_folder, write_bytes

_SETTLED_NS = 1_000_000_000
_GROUP_FILES, _GROUP_BYTES = 512, 64 << 20

_TYPES: dict[str, pa.DataType] = {
    "container": pa.string(),
    "member": pa.string(),
    "identity": pa.string(),  # of the container, as the file system tells it
    "sha256": pa.string(),
}
_SCHEMA = pa.schema(_TYPES)


class Content(NamedTuple):
    """What a file holds: a digest, or why it cannot be read."""

    sha256: str
    reason: Reason | None = None
    detail: str = ""


def contents(
    job: Job[Any], folder: Path, files: Sequence[RawFile], max_bytes: int
) -> list[Content]:
    """What each file holds, in the order of `files`.

    Args:
        job: the run.
        folder: raw/.
        files: as `list_files` found them, without those that have a fault.
        max_bytes: larger ones are not read.
    """
    ledger = _ledger_path(folder, max_bytes)
    identities = {name: _identity(folder / name) for name in {file.container for file in files}}
    known = {
        (container, member): sha256
        for container, member, identity, sha256 in _read(ledger)
        if identities.get(container) == identity
    }
    unread = [file for file in files if (file.container, file.member) not in known]
    read = functools.partial(_read_group, folder, max_bytes)
    groups = list(_groups(unread))
    found = job.map(read, groups, describe="groups of files read") if groups else []
    new = dict(zip(unread, (content for group in found for content in group), strict=True))
    result = [
        new[file] if file in new else Content(known[file.container, file.member]) for file in files
    ]
    if groups:
        _write(ledger, files, result, identities)
    return result


def _identity(path: Path) -> str:
    """What the file system says of a file; empty where it may yet change without a sign."""
    try:
        found = path.stat()
    except OSError:
        return ""
    if time.time_ns() - found.st_mtime_ns < _SETTLED_NS:
        return ""
    return f"{found.st_size} {found.st_ino} {found.st_mtime_ns}"


def _groups(files: Iterable[RawFile]) -> Iterator[list[RawFile]]:
    """Neighbours, as many as make a task worth its while."""
    group: list[RawFile] = []
    num_bytes = 0
    for file in files:
        group.append(file)
        num_bytes += file.num_bytes
        if len(group) >= _GROUP_FILES or num_bytes >= _GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _read_group(folder: Path, max_bytes: int, files: Sequence[RawFile]) -> list[Content]:
    return [_content(folder, max_bytes, file) for file in files]


def _content(folder: Path, max_bytes: int, file: RawFile) -> Content:
    try:
        data = raw.read(folder, file.container, file.member, max_bytes)
    except raw.ReadFault as fault:
        return Content("", fault.reason, fault.detail)
    return Content(hashlib.sha256(data).hexdigest())


def _ledger_path(folder: Path, max_bytes: int) -> Path:
    """Where the digests of a raw folder are kept: another code may read other bytes."""
    key = f"{folder.resolve()} {max_bytes} {code.read(frozenset({__name__})).digest}"
    return state_folder() / "contents" / hashlib.sha256(key.encode()).hexdigest()[:32]


def _read(ledger: Path) -> Iterator[tuple[str, str, str, str]]:
    """The rows of a ledger; none where it is not there, or not as it was written."""
    try:
        checksum, _, data = ledger.read_bytes().partition(b"\n")
    except OSError:
        return
    if hashlib.sha256(data).hexdigest().encode() == checksum:
        table = pq.ParquetFile(io.BytesIO(data)).read()  # `read_table` imports pandas.
        columns = [table.column(name).to_pylist() for name in _SCHEMA.names]
        yield from zip(*columns, strict=True)


def _write(
    ledger: Path,
    files: Sequence[RawFile],
    found: Sequence[Content],
    identities: Mapping[str, str],
) -> None:
    """Keep what is sure; a state that cannot be written costs time and no more."""
    kept = [
        (file.container, file.member, identities[file.container], content.sha256)
        for file, content in zip(files, found, strict=True)
        if content.sha256 and identities[file.container]
    ]
    columns = [pa.array(column, pa.string()) for column in zip(*kept, strict=True)] or None
    table = pa.table(columns, schema=_SCHEMA) if columns else _SCHEMA.empty_table()
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue()
    with contextlib.suppress(OSError):
        write_bytes(ledger, hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
