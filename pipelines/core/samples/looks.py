"""Looking at the images of a dataset, each content once: what was looked at is not looked at again.

Contents are dealt to groups by a hash, so a new, changed or removed file touches one group; a
renamed or relabelled one, or other thresholds, touch none.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from pipelines.core import memo, records
from pipelines.core.buckets import bucket_of, num_buckets_for
from pipelines.core.errors import HeadraceError
from pipelines.core.images import features, look
from pipelines.core.images.features import Features, Limits
from pipelines.core.memo import Task
from pipelines.core.samples import raw
from pipelines.core.samples.contents import Content, contents
from pipelines.core.samples.raw import RawFile
from pipelines.core.shards import pieces
from pipelines.core.stage import Job

_TARGET_FILES, _TARGET_MIB = 128, 8.0
_TABLE = "features.arrow"


class _Look(NamedTuple):
    """A content to look at, and one of the files that hold it."""

    sha256: str
    claims_image: bool
    """Whether the file's name is that of an image: it tells a damaged one from another kind."""
    file: RawFile


def features_of(job: Job[Any], folder: Path, files: Sequence[RawFile], limits: Limits) -> pa.Table:
    """The features of files, in their order (`features.SCHEMA`).

    Args:
        job: the run.
        folder: raw/.
        files: as `raw.list_files` found them, without those that have a fault.
        limits: files beyond either are not decoded.

    Raises:
        HeadraceError: a file was changed meanwhile.
    """
    found = contents(job, folder, files, limits.max_bytes)
    looks = [_look_of(file, content) for file, content in zip(files, found, strict=True)]
    first: dict[tuple[str, bool], _Look] = {}
    for one in sorted(one for one in looks if one.sha256):
        first.setdefault(one[:2], one)
    seen, rows = _look_at_all(job, folder, list(first.values()), limits)
    faults = [(at, content) for at, content in enumerate(found) if content.reason is not None]
    unread = [_unread(files[at], content) for at, content in faults]
    at_fault = {at: len(rows) + number for number, (at, _) in enumerate(faults)}
    take = [at_fault[at] if at in at_fault else rows[one[:2]] for at, one in enumerate(looks)]
    return pa.concat_tables([seen, features.to_table(unread)]).take(pa.array(take, pa.int64()))


def _look_of(file: RawFile, content: Content) -> _Look:
    return _Look(content.sha256, look.claims_image(file.path), file)


def _unread(file: RawFile, content: Content) -> Features:
    assert content.reason is not None
    return Features(reason=content.reason, detail=content.detail, num_bytes=file.num_bytes)


def _look_at_all(
    job: Job[Any], folder: Path, looks: Sequence[_Look], limits: Limits
) -> tuple[pa.Table, dict[tuple[str, bool], int]]:
    """The features of all contents, and the row of each."""
    num_bytes = sum(one.file.num_bytes for one in looks)
    num_groups = num_buckets_for(
        len(looks), num_bytes, target_samples=_TARGET_FILES, target_mib=_TARGET_MIB
    )
    groups: defaultdict[int, list[_Look]] = defaultdict(list)
    for one in looks:
        groups[bucket_of(one.sha256, num_groups)].append(one)
    tasks = [
        Task(f"looks-{number:06d}", memo.digest(*(f"{one[:2]}" for one in group)), group)
        for number, group in sorted(groups.items())
    ]
    write = functools.partial(_look_at, folder, limits)
    folders = memo.build(job, write, tasks, settings=limits, describe="groups looked at")
    tables = [pieces.read_ipc_copy(piece / _TABLE) for piece in folders]
    order = [one for _, group in sorted(groups.items()) for one in group]
    table = pa.concat_tables([features.SCHEMA.empty_table(), *tables])
    pieces.remove(folders)
    return table, {one[:2]: row for row, one in enumerate(order)}


def _look_at(folder: Path, limits: Limits, looks: Sequence[_Look], piece: Path) -> None:
    """Write the features of a group of contents."""
    rows = [_inspected(folder, limits, one) for one in looks]
    records.write_ipc(piece / _TABLE, features.to_table(rows))


def _inspected(folder: Path, limits: Limits, one: _Look) -> Features:
    file = one.file
    try:
        data = raw.read(folder, file.container, file.member, limits.max_bytes)
        seen = look.inspect(data, file.path, limits)
    except raw.ReadFault as fault:
        seen = Features(detail=fault.detail)
    if seen.sha256 != one.sha256:
        raise HeadraceError(
            "The raw data changed while they were looked at.",
            where=f"{folder}/{file.container}" + (f"/{file.member}" if file.member else ""),
            expected=f"SHA-256 {one.sha256}",
            found=seen.detail if not seen.sha256 else f"SHA-256 {seen.sha256}",
            fix="run the command again once nothing writes there",
        )
    return seen
