"""A comparison as a table for people, and as an object for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.commands.diff.compare import ABSENT, KEPT, Change, Changes, Pair, Sample, Side
from pipelines.commands.diff.version import Version
from pipelines.core.records import SPLITS
from pipelines.core.report import Json

NUM_SHOWN = 10
"""Of each kind, unless all are asked for."""
_DIGEST_CHARS = 12


@dataclass(frozen=True)
class Comparison:
    """Two versions, their samples and what changed between them."""

    before: Version
    after: Version
    sides: tuple[Side, Side]
    changes: Changes

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know besides."""
        counts = len(self.before.manifest), len(self.after.manifest)
        notes = (*self.before.notes, *self.after.notes)
        if counts[0] == counts[1]:
            return notes
        return (*notes, f"{counts[0]} buckets became {counts[1]}: every shard is another one")


def as_json(found: Comparison) -> dict[str, Json]:
    """Everything, all samples included."""
    made = found.changes
    before, after = found.sides
    return {
        "dataset": found.after.dataset,
        "before": _about(found.before, before),
        "after": _about(found.after, after),
        "added": [row._asdict() for row in made.added],
        "removed": [row._asdict() for row in made.removed],
        "renamed": [_pair(pair, "key") for pair in made.renamed],
        "relabelled": [_pair(pair, "label") for pair in made.relabelled],
        "moved": [_pair(pair, "split") for pair in made.moved],
        "content_changed": [_pair(pair, "sha256") for pair in made.content_changed],
        "newly_rejected": [_change(change, "was") for change in made.newly_rejected],
        "no_longer_rejected": [_change(change, "is") for change in made.no_longer_rejected],
        "notes": list(found.notes),
    }


def _about(version: Version, side: Side) -> dict[str, Json]:
    reasons = Counter(row.reason for row in side.rejected)
    return {
        "revision": version.name,
        "dataset_version": version.digest,
        "num_buckets": len(version.manifest),
        "samples_kept": side.labels.total(),
        "samples_rejected": len(side.rejected),
        "labels": dict(sorted(side.labels.items())),
        "splits": dict(sorted(side.splits.items())),
        "rejected": dict(sorted(reasons.items())),
    }


def _pair(pair: Pair, column: str) -> dict[str, Json]:
    """A sample that stayed; `key` is its present one."""
    ends = (getattr(end, column) for end in pair)
    return {"key": pair.after.key, **dict(zip(("before", "after"), ends, strict=True))}


def _change(change: Change, verb: str) -> dict[str, Json]:
    return {**change.rejection._asdict(), verb: change.other}


def as_text(found: Comparison, *, show_all: bool = False) -> str:
    """What a person reads: the versions, a line a kind of change, counts, then the keys."""
    made = found.changes
    head = [f"Samples of {found.after.dataset}: {found.before.name} -> {found.after.name}", ""]
    parts = [head, _totals(found)]
    if made.is_empty:
        parts.append(["", "No sample differs."])
    for title, lines in _sections(made):
        if lines:
            parts.append(["", f"{title} ({len(lines):,})", *_cut(lines, show_all=show_all)])
    parts.append(_counts("class", *(side.labels for side in found.sides)))
    if found.notes:
        parts.append(["", *(f"Note: {note}" for note in found.notes)])
    return "\n".join(line for part in parts for line in part)


def _totals(found: Comparison) -> list[str]:
    """The two versions beside each other."""
    before, after = found.sides
    digests = [
        (version.digest or "unknown")[:_DIGEST_CHARS] for version in (found.before, found.after)
    ]
    rows = [
        ("dataset version", *digests, ""),
        _counted("kept", before.labels.total(), after.labels.total()),
        *(_counted(f"  {split}", before.splits[split], after.splits[split]) for split in SPLITS),
        _counted("rejected", len(before.rejected), len(after.rejected)),
    ]
    reasons = [Counter(row.reason for row in side.rejected) for side in found.sides]
    rows += [
        _counted(f"  {reason}", reasons[0][reason], reasons[1][reason])
        for reason in sorted(reasons[0] | reasons[1])
    ]
    return _table(("", "before", "after", ""), rows)


def _counts(title: str, before: Counter[str], after: Counter[str]) -> list[str]:
    """Classes whose number of samples changed, and how many stayed."""
    names = sorted(before | after)
    changed = [name for name in names if before[name] != after[name]]
    if not changed:
        return []
    rows = [_counted(name, before[name], after[name]) for name in changed]
    rest = len(names) - len(changed)
    lines = _table((title, "before", "after", ""), rows)
    return ["", *lines, *([f"({rest:,} others are of the same size)"] if rest else [])]


def _counted(name: str, before: int, after: int) -> tuple[str, str, str, str]:
    change = f"{after - before:+,}" if after != before else ""
    return name, f"{before:,}", f"{after:,}", change


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Columns under their heads: the first to the left, the others to the right."""
    whole = [head, *rows]
    widths = [max(len(row[column]) for row in whole) for column in range(len(head))]
    lines = []
    for name, *values in whole:
        cells = [f"{value:>{width}}" for value, width in zip(values, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:<{widths[0]}}", *cells]).rstrip())
    return lines


def _sections(made: Changes) -> list[tuple[str, list[str]]]:
    return [
        ("Added", [_sample(row) for row in made.added]),
        ("Removed", [_sample(row) for row in made.removed]),
        ("Renamed", [f"{pair.before.key} -> {pair.after.key}" for pair in made.renamed]),
        ("Relabelled", [_arrow(pair, "label") for pair in made.relabelled]),
        ("Moved between splits", [_arrow(pair, "split") for pair in made.moved]),
        ("Content changed", [pair.after.key for pair in made.content_changed]),
        ("Newly rejected", [_told(change, _was) for change in made.newly_rejected]),
        ("No longer rejected", [_told(change, _is) for change in made.no_longer_rejected]),
    ]


def _sample(row: Sample) -> str:
    return f"{row.key}  {row.label}, {row.split}"


def _arrow(pair: Pair, column: str) -> str:
    ends: list[Any] = [getattr(end, column) for end in pair]
    return f"{pair.after.key}  {ends[0]} -> {ends[1]}"


def _told(change: Change, state: Callable[[str], str]) -> str:
    row = change.rejection
    return f"{row.reason}  {row.identity}  {row.detail} [{row.stage}; {state(change.other)}]"


def _was(other: str) -> str:
    known = {KEPT: "was kept", ABSENT: "is new"}
    return known.get(other, f"was rejected as {other}")


def _is(other: str) -> str:
    known = {KEPT: "is kept", ABSENT: "is gone"}
    return known.get(other, f"is rejected as {other}")


def _cut(lines: Sequence[str], *, show_all: bool) -> list[str]:
    shown = lines if show_all else lines[:NUM_SHOWN]
    more = len(lines) - len(shown)
    rest = [f"  and {more:,} more (--all)"] if more else []
    return [*(f"  {line}" for line in shown), *rest]
