"""What changed between two sets of samples, as plain rows: opens no file.

A sample is known by its key. One that has gone and one that is new with the same content are one
that was renamed. Every sample that differs is told once in these: added, removed, renamed, newly
rejected, no longer rejected; and one that stayed (or was renamed) may be relabelled, moved to
another split, or have other content, or several of these.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ABSENT, KEPT = "absent", "kept"


class Sample(NamedTuple):
    """A kept sample."""

    key: str
    label: str
    split: str
    sha256: str


class Rejection(NamedTuple):
    """A dropped one, or a row that is none."""

    key: str
    path: str
    reason: str
    detail: str
    stage: str

    @property
    def identity(self) -> str:
        """What it is known by: its key, or its place where it has none."""
        return self.key or self.path


class Pair(NamedTuple):
    """A sample before and after."""

    before: Sample
    after: Sample


class Change(NamedTuple):
    """A rejection that is new or gone, and what the sample is on the other side.

    `other` is `kept`, `absent`, or another reason.
    """

    rejection: Rejection
    other: str


@dataclass(frozen=True)
class Side:
    """The samples of a version, at least all those that may differ from the other one's.

    Attributes:
        kept: by key.
        rejected: rows of all stages.
        labels: number of kept samples of each label, of the whole version.
        splits: the same of each split.
    """

    kept: Mapping[str, Sample]
    rejected: Sequence[Rejection]
    labels: Counter[str]
    splits: Counter[str]


@dataclass(frozen=True)
class Changes:
    """All that changed, each part in the order of keys."""

    added: tuple[Sample, ...]
    removed: tuple[Sample, ...]
    renamed: tuple[Pair, ...]
    relabelled: tuple[Pair, ...]
    moved: tuple[Pair, ...]
    content_changed: tuple[Pair, ...]
    newly_rejected: tuple[Change, ...]
    no_longer_rejected: tuple[Change, ...]

    @property
    def is_empty(self) -> bool:
        """Whether the samples are the same."""
        return not any(vars(self).values())


def changes(before: Side, after: Side) -> Changes:
    """What changed from one version to the next."""
    rejected_before, rejected_after = _by_identity(before), _by_identity(after)
    gone = [
        row for key, row in before.kept.items() if key not in after.kept.keys() | rejected_after
    ]
    new = [
        row for key, row in after.kept.items() if key not in before.kept.keys() | rejected_before
    ]
    renamed = _renamed(gone, new)
    old_names = {pair.before.key for pair in renamed}
    new_names = {pair.after.key for pair in renamed}
    stayed = [Pair(row, after.kept[key]) for key, row in before.kept.items() if key in after.kept]
    pairs = sorted([*stayed, *renamed], key=lambda pair: pair.after.key)
    return Changes(
        added=tuple(sorted(row for row in new if row.key not in new_names)),
        removed=tuple(sorted(row for row in gone if row.key not in old_names)),
        renamed=tuple(renamed),
        relabelled=tuple(pair for pair in pairs if pair.before.label != pair.after.label),
        moved=tuple(pair for pair in pairs if pair.before.split != pair.after.split),
        content_changed=tuple(pair for pair in pairs if pair.before.sha256 != pair.after.sha256),
        newly_rejected=_rejections(after, before),
        no_longer_rejected=_rejections(before, after),
    )


def _renamed(gone: Iterable[Sample], new: Iterable[Sample]) -> list[Pair]:
    """Pairs of equal content, one to one; sorted by the new key."""
    by_content: dict[str, list[Sample]] = defaultdict(list)
    for row in sorted(gone, reverse=True):
        by_content[row.sha256].append(row)
    return [
        Pair(by_content[row.sha256].pop(), row) for row in sorted(new) if by_content[row.sha256]
    ]


def _by_identity(side: Side) -> dict[str, list[Rejection]]:
    found: dict[str, list[Rejection]] = defaultdict(list)
    for row in side.rejected:
        found[row.identity].append(row)
    return dict(found)


def _rejections(side: Side, other: Side) -> tuple[Change, ...]:
    """Those of `side` that `other` does not have for the same reason."""
    there = _by_identity(other)
    found = []
    for identity, rows in sorted(_by_identity(side).items()):
        known = there.get(identity, [])
        open_reasons = Counter(row.reason for row in known)
        for row in sorted(rows):
            if open_reasons[row.reason]:
                open_reasons[row.reason] -= 1
                continue
            if identity in other.kept and identity not in side.kept:
                state = KEPT
            else:
                state = known[0].reason if known else ABSENT
            found.append(Change(row, state))
    return tuple(found)
