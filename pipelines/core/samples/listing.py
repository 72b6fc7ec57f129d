"""What finding samples gives: samples, and what is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pipelines.core.reasons import Reason
from pipelines.core.samples.raw import RawFile


class Sample(NamedTuple):
    """A file with a label; nothing is known of its content yet."""

    key: str
    file: RawFile
    label: str
    split: str
    """train, val or test as given, or empty."""


class Dropped(NamedTuple):
    """A row or file that is no sample, or a sample that was dropped."""

    key: str
    path: str
    """Where it came from, for people."""
    reason: Reason
    detail: str


@dataclass(frozen=True)
class Listing:
    """All that was found: what may be used and what may not."""

    samples: tuple[Sample, ...]
    """Sorted by key."""
    dropped: tuple[Dropped, ...]
    merged_labels: tuple[str, ...]
    """Spellings that were taken for another, as `cats -> Cats`."""


def place(file: RawFile) -> str:
    """Where a file is, for people: `2026/cats.zip/cat/1.jpg`."""
    return f"{file.container}/{file.member}" if file.member else file.container
