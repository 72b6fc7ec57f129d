"""The rows of two versions that may differ, read from the buckets whose files do.

Buckets of equal bytes hold equal samples: they are read once for both versions, from the workspace
where it has them, and only to count labels and splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from pipelines.commands.diff.compare import Rejection, Sample, Side
from pipelines.commands.diff.version import File, Version
from pipelines.core.buckets import bucket_of


def sides(before: Version, after: Version) -> tuple[Side, Side]:
    """What is to be compared of two versions of a dataset."""
    shared = _Shared(before, after)
    rejections = _rejections(before, shared), _rejections(after, shared)
    differing = _differing(before, after, *rejections)
    return (
        _side(before, rejections[0], differing, shared),
        _side(after, rejections[1], differing, shared),
    )


class _Shared:
    """Tables by MD5: versions have most of their files in common."""

    def __init__(self, *versions: Version) -> None:
        files = [(*version.manifest.values(), *version.rejected.values()) for version in versions]
        # Of equal files the last counts: the workspace comes last, and costs no download.
        self._files = {file.md5: file for of_version in files for file in of_version}
        self._tables: dict[str, pa.Table] = {}

    def rows(self, file: File, columns: list[str]) -> pa.Table:
        if file.md5 not in self._tables:
            self._tables[file.md5] = self._files[file.md5].rows(columns)
        return self._tables[file.md5]


def _differing(
    before: Version, after: Version, old: Iterable[Rejection], new: Iterable[Rejection]
) -> frozenset[int] | None:
    """The buckets in which anything may differ; None for all, where their number does."""
    if before.manifest.keys() != after.manifest.keys():
        return None
    num_buckets = len(before.manifest)
    changed = {
        number for number, file in before.manifest.items() if file.md5 != after.manifest[number].md5
    }
    # A sample that a later stage has begun to reject is in an unchanged bucket of the manifest.
    touched = {row.key for row in set(old) ^ set(new) if row.key}
    return frozenset(changed | {bucket_of(key, num_buckets) for key in touched})


def _rejections(version: Version, shared: _Shared) -> list[Rejection]:
    columns = list(Rejection._fields)
    return [
        Rejection(**row)
        for file in version.rejected.values()
        for row in shared.rows(file, columns).to_pylist()
    ]


def _side(
    version: Version,
    rejected: list[Rejection],
    differing: frozenset[int] | None,
    shared: _Shared,
) -> Side:
    lost = {row.key for row in rejected if row.stage in version.late}
    kept: dict[str, Sample] = {}
    labels: Counter[str] = Counter()
    splits: Counter[str] = Counter()
    for number, file in sorted(version.manifest.items()):
        table = _without(shared.rows(file, list(Sample._fields)), lost)
        labels.update(_counts(table, "label"))
        splits.update(_counts(table, "split"))
        if differing is None or number in differing:
            kept |= {row["key"]: Sample(**row) for row in table.to_pylist()}
    return Side(kept, rejected, labels, splits)


def _without(table: pa.Table, keys: set[str]) -> pa.Table:
    """The rows of other keys."""
    if not keys:
        return table
    return table.filter(pa.array([key not in keys for key in table["key"].to_pylist()], pa.bool_()))


def _counts(table: pa.Table, column: str) -> Counter[str]:
    return Counter(map(str, table[column].to_pylist()))
