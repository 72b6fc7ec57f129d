"""What the page shows of samples that look alike: the largest clusters, and the pairs that leak.

Costs reading a few columns of the manifest, if near-duplicates were sought; memory: some 100 bytes
a sample that has any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.core import records
from pipelines.core.page.facts import Example, Folders
from pipelines.core.page.thumbnails import Place

MAX_MEMBERS = 6
"""Of a cluster that are shown; the others are counted."""
_COLUMNS = ["key", "label", "split", "cluster", *Place._fields]


class Cluster(NamedTuple):
    """Kept samples that look alike."""

    name: str
    num_samples: int
    splits: tuple[str, ...]
    """In which they are; more than one leak."""
    examples: tuple[Example, ...]


class Pair(NamedTuple):
    """Two kept samples that look alike and are in different splits."""

    distance_bits: int
    examples: tuple[Example, Example]


@dataclass(frozen=True)
class Alike:
    """The near-duplicates of a dataset.

    Attributes:
        policy: `clean.near_duplicates`.
        radius_bits: `clean.near_duplicate_radius_bits`.
        num_clusters: of two kept samples and more.
        num_samples: in those.
        num_pairs: that leak, by splits: `train_val`, `train_test`, `val_test`.
        clusters: the largest.
        pairs: those that leak with the fewest different bits.
    """

    policy: str
    radius_bits: int
    num_clusters: int
    num_samples: int
    num_pairs: Mapping[str, int]
    clusters: tuple[Cluster, ...]
    pairs: tuple[Pair, ...]


def read(folders: Folders, num_examples: int) -> Alike | None:
    """Read what `clean` found; None where it did not look.

    Args:
        folders: where.
        num_examples: of clusters, and of pairs.
    """
    leaks = records.read_parquet(folders.clean / "leaks.parquet")
    told = records.metadata(leaks.schema)
    if told["near_duplicates"] == "ignore":
        return None
    wanted = pc.field("cluster") != ""
    tables = [
        pq.read_table(path, columns=_COLUMNS, filters=wanted, partitioning=None)
        for path in sorted((folders.clean / "manifest").glob("*.parquet"))
    ]
    rows = pa.concat_tables(tables).sort_by("key")
    counted: Any = pc.value_counts(rows["cluster"])
    sizes = {it["values"]: it["counts"] for it in counted.to_pylist() if it["counts"] > 1}
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:num_examples]
    return Alike(
        policy=told["near_duplicates"],
        radius_bits=told["radius_bits"],
        num_clusters=len(sizes),
        num_samples=sum(sizes.values()),
        num_pairs=told["num_pairs"],
        clusters=tuple(_cluster(rows, name) for name in largest),
        pairs=_pairs(rows, leaks.slice(0, num_examples)),
    )


def _cluster(rows: pa.Table, name: str) -> Cluster:
    own = rows.filter(pc.field("cluster") == name)
    found = set(own["split"].to_pylist())
    splits = tuple(split for split in records.SPLITS if split in found)
    shown = own.slice(0, MAX_MEMBERS).to_pylist()
    return Cluster(name, own.num_rows, splits, tuple(_example(row) for row in shown))


def _pairs(rows: pa.Table, leaks: pa.Table) -> tuple[Pair, ...]:
    pairs = leaks.to_pylist()
    keys = pa.array([pair[name] for pair in pairs for name in ("key_a", "key_b")], pa.string())
    members = rows.filter(pc.is_in(rows["key"], value_set=keys)).to_pylist()
    by_key = {row["key"]: _example(row) for row in members}
    return tuple(
        Pair(pair["distance_bits"], (by_key[pair["key_a"]], by_key[pair["key_b"]]))
        for pair in pairs
    )


def _example(row: Mapping[str, Any]) -> Example:
    place = Place(row["container"], row["member"])
    path = "/".join(filter(None, place))
    return Example(row["key"], path, f"{row['split']}, {row['label']}", place)
