"""Claims on files, and what comes of them: one label, split and key a file, or a reason.

A claim is what a row of metadata, or a file's folders, say of a file. Claims that contradict each
other all go; of those that agree one stays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from pipelines.core.errors import did_you_mean
from pipelines.core.reasons import Reason
from pipelines.core.records import SPLITS
from pipelines.core.samples.classes import SPLIT_RANK, Labels, split_named
from pipelines.core.samples.keys import key_of, unique_keys
from pipelines.core.samples.listing import Dropped, Listing, Sample, place
from pipelines.core.samples.raw import RawFile


class Claim(NamedTuple):
    """A file, and what a row or its folders say of it; `origin` orders claims on one file."""

    file: RawFile
    label: str
    split: str
    origin: tuple[str, int]


def dropped_file(file: RawFile, reason: Reason, detail: str) -> Dropped:
    """A file that is no sample."""
    return Dropped(key_of(file.path), place(file), reason, detail)


def sound_files(files: Sequence[RawFile]) -> tuple[list[RawFile], list[Dropped]]:
    """Files that can be read, sorted by path, and the others as dropped."""
    dropped = [
        Dropped(key_of(file.path), file.path, file.fault, file.detail)
        for file in files
        if file.fault is not None
    ]
    return sorted(file for file in files if file.fault is None), dropped


def settle(
    claims: Sequence[Claim],
    dropped: Sequence[Dropped],
    labels: Sequence[str] | None,
    *,
    needs_split: bool,
) -> Listing:
    """Give each file one label, split and key, or a reason.

    Args:
        claims: a file may have several.
        dropped: what was dropped before.
        labels: the card's classes, or None to take those that are found.
        needs_split: drop files without a split.
    """
    names = Labels(labels, Counter(claim.label for claim in claims if claim.label))
    by_file: dict[RawFile, list[Claim]] = defaultdict(list)
    lost = list(dropped)
    for claim in claims:
        fault = _fault(claim, names, needs_split=needs_split)
        if fault is None:
            by_file[claim.file].append(claim)
        else:
            lost.append(dropped_file(claim.file, *fault))
    kept = []
    for file in sorted(by_file):
        same = by_file[file]
        found = sorted({names.by_spelling[claim.label] for claim in same})
        if len(found) > 1:
            detail = "labels " + ", ".join(map(repr, found))
            lost += [dropped_file(file, Reason.CONFLICTING_LABELS, detail) for _ in same]
            continue
        best, *others = sorted(same, key=_rank)
        kept.append((file, found[0], split_named(best.split) or ""))
        detail = "another row names the same file"
        lost += [dropped_file(file, Reason.DUPLICATE_ROW, detail) for _ in others]
    keys = unique_keys([(file.container, file.path) for file, _, _ in kept])
    samples = sorted(
        Sample(key, file, label, split)
        for key, (file, label, split) in zip(keys, kept, strict=True)
    )
    return Listing(tuple(samples), tuple(lost), names.merged)


def _rank(claim: Claim) -> tuple[int, tuple[str, int]]:
    split = split_named(claim.split)
    return SPLIT_RANK[split] if split else len(SPLITS), claim.origin


def _fault(claim: Claim, names: Labels, *, needs_split: bool) -> tuple[Reason, str] | None:
    if not claim.label:
        return Reason.NO_LABEL, "the label is empty"
    if claim.label not in names.by_spelling:
        near = did_you_mean(claim.label, names.names)
        return Reason.UNKNOWN_LABEL, f"label {claim.label!r} is not in the card's list.{near}"
    if claim.split and not split_named(claim.split):
        return Reason.UNKNOWN_SPLIT, f"split {claim.split!r} is none of {', '.join(SPLITS)}"
    if needs_split and not claim.split:
        return Reason.UNKNOWN_SPLIT, "the file lies in no folder of a split, and others do"
    return None
