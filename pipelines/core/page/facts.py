"""What the page tells of a dataset, read from what the stages wrote.

Costs reading the manifest's columns once; memory: some 40 bytes a kept sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.core import records
from pipelines.core.buckets import bucket_of
from pipelines.core.page.thumbnails import Place, place_of
from pipelines.core.reasons import Reason
from pipelines.core.records import SPLITS

FILTERED = "filtered"
"""Instead of a reason: dropped by a stage between `clean` and `shard`, which has a table of its own
that the page does not read."""
_FILTERED_MEANING = "A stage between clean and shard dropped it: its own rejected.parquet says why."
_NUMBERS = ("width", "height", "num_bytes", "brightness", "contrast", "sharpness")
_NAMES = ("format", "mode")
_COLUMNS = ["key", "container", "member", "label_index", "split", *_NUMBERS, *_NAMES]


@dataclass(frozen=True)
class Folders:
    """What the stages wrote."""

    raw: Path
    clean: Path
    shards: Path
    decoded: Path


class Example(NamedTuple):
    """A rejected sample to be shown."""

    key: str
    path: str
    detail: str
    place: Place | None


class Group(NamedTuple):
    """The samples that one stage rejected for one reason."""

    stage: str
    reason: str
    meaning: str
    num_samples: int
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Facts:
    """Counts and columns of a dataset.

    Attributes:
        labels: class names by index.
        classes: kept samples by class and split, [K, 3] int64.
        numbers: columns of the kept samples: by name, then by split, [N] each.
        names: how often each name occurs in a split: by column, then by name, [3] int64.
        groups: by stage in the order of the line, then the largest first.
    """

    labels: tuple[str, ...]
    classes: npt.NDArray[np.int64]
    numbers: Mapping[str, Mapping[str, npt.NDArray[np.float32]]]
    names: Mapping[str, Mapping[str, npt.NDArray[np.int64]]]
    groups: tuple[Group, ...]

    @property
    def num_kept(self) -> int:
        """Samples that every stage kept."""
        return int(self.classes.sum())

    @property
    def num_rejected(self) -> int:
        """All others that were found."""
        return sum(group.num_samples for group in self.groups)


def read(folders: Folders, num_examples: int) -> Facts:
    """Read what the stages wrote.

    Args:
        folders: where.
        num_examples: of each reason, spread evenly over the keys.
    """
    index = records.read_ipc(folders.shards / "index.arrow")
    late = {name: _rejected(getattr(folders, name)) for name in ("shards", "decoded")}
    lost = pa.concat_tables([table.select(["key"]) for table in late.values()])["key"]
    labels = tuple(records.metadata(index.schema)["labels"])
    columns, filtered = _Columns(len(labels)), []
    manifests = sorted((folders.clean / "manifest").glob("*.parquet"))
    for path, packed in zip(manifests, _by_bucket(index, len(manifests)), strict=True):
        table = pq.read_table(path, columns=_COLUMNS, partitioning=None)
        is_known = pc.or_(*(pc.is_in(table["key"], value_set=keys) for keys in (packed, lost)))
        filtered += table.filter(pc.invert(is_known)).select(["key", *Place._fields]).to_pylist()
        is_kept = pc.and_(is_known, pc.invert(pc.is_in(table["key"], value_set=lost)))
        columns.add(table.filter(is_kept))
    of_clean = _Finder(folders.raw, manifests)
    groups = [
        *_groups("clean", _rejected(folders.clean), of_clean, num_examples),
        *_filtered(filtered, num_examples),
        *_groups("shard", late["shards"], of_clean, num_examples),
        *_groups("decode", late["decoded"], of_clean, num_examples),
    ]
    return Facts(labels, columns.classes, columns.numbers(), columns.names, tuple(groups))


def _counts(column: Any) -> dict[str, int]:
    """How often each value occurs."""
    counted: Any = pc.value_counts(column)
    return {str(it["values"]): it["counts"] for it in counted.to_pylist()}


def _by_bucket(index: pa.Table, num_buckets: int) -> Iterator[pa.ChunkedArray[Any]]:
    """The keys of an index, bucket by bucket: it is sorted by split first."""
    buckets = index["bucket"].to_numpy()
    order = np.argsort(buckets, kind="stable")
    bounds = np.searchsorted(buckets[order], np.arange(num_buckets + 1))
    for start, stop in itertools.pairwise(bounds):
        yield index["key"].take(order[start:stop])


def _rejected(folder: Path) -> pa.Table:
    return records.read_parquet(folder / "rejected.parquet")


class _Columns:
    """Columns of the kept samples, bucket by bucket."""

    def __init__(self, num_labels: int) -> None:
        self.classes = np.zeros((num_labels, len(SPLITS)), np.int64)
        self.names: dict[str, dict[str, npt.NDArray[np.int64]]] = {name: {} for name in _NAMES}
        self._parts: dict[str, dict[str, list[npt.NDArray[Any]]]] = {
            name: {split: [] for split in SPLITS} for name in (*_NUMBERS, "aspect")
        }

    def add(self, table: pa.Table) -> None:
        """Take in kept rows of a manifest."""
        for at, split in enumerate(SPLITS):
            own = table.filter(pc.field("split") == split)
            if not own.num_rows:
                continue
            labels = own["label_index"].to_numpy()
            self.classes[:, at] += np.bincount(labels, minlength=len(self.classes))
            for name in _NUMBERS:
                self._parts[name][split].append(own[name].to_numpy().astype(np.float32))
            sides = own["width"].to_numpy(), own["height"].to_numpy()
            aspect = np.maximum(*sides) / np.maximum(np.minimum(*sides), 1)
            self._parts["aspect"][split].append(aspect.astype(np.float32))
            for name in _NAMES:
                for value, count in _counts(own[name]).items():
                    row = self.names[name].setdefault(value, np.zeros(len(SPLITS), np.int64))
                    row[at] += count

    def numbers(self) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
        """The columns in one piece each."""
        empty = np.empty(0, np.float32)
        return {
            name: {split: np.concatenate([empty, *parts]) for split, parts in by_split.items()}
            for name, by_split in self._parts.items()
        }


class _Finder:
    """Finds the file of a rejected row: by its key in the manifest, or by its path in raw/."""

    def __init__(self, raw: Path, manifests: list[Path]) -> None:
        self._raw = raw
        self._manifests = manifests

    def place(self, stage: str, row: Mapping[str, str]) -> Place | None:
        if stage == "clean":
            return place_of(self._raw, row["path"])
        path = self._manifests[bucket_of(row["key"], len(self._manifests))]
        wanted = pc.field("key") == row["key"]
        table = pq.read_table(path, columns=[*Place._fields], filters=wanted, partitioning=None)
        return next((Place(**found) for found in table.to_pylist()), None)


def _groups(stage: str, table: pa.Table, finder: _Finder, num_examples: int) -> Iterator[Group]:
    """The groups of a rejected table, the largest first."""
    counts = _counts(table["reason"])
    meanings: dict[str, str] = {reason.value: reason.meaning for reason in Reason}
    for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        own = table.filter(pc.field("reason") == reason)
        rows = own.take(pa.array(_spread(count, num_examples), pa.int64())).to_pylist()
        examples = (
            Example(row["key"], row["path"], row["detail"], finder.place(stage, row))
            for row in rows
        )
        yield Group(stage, reason, meanings.get(reason, ""), count, tuple(examples))


def _filtered(rows: list[dict[str, str]], num_examples: int) -> Iterable[Group]:
    if not rows:
        return
    rows.sort(key=lambda row: row["key"])
    shown = [rows[at] for at in _spread(len(rows), num_examples)]
    places = [Place(row["container"], row["member"]) for row in shown]
    examples = [
        Example(row["key"], "/".join(filter(None, place)), "", place)
        for row, place in zip(shown, places, strict=True)
    ]
    yield Group("between", FILTERED, _FILTERED_MEANING, len(rows), tuple(examples))


def _spread(count: int, num_wanted: int) -> list[int]:
    """At most `num_wanted` of the numbers below `count`, evenly spaced."""
    num_shown = min(count, num_wanted)
    return [at * count // num_shown for at in range(num_shown)]
