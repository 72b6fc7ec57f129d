"""Leaks: pairs of kept samples that look alike and are in different splits.

What a model is judged by is then, in part, what it was trained on. Only given splits can leak,
unless near-duplicates are but flagged. All pairs are counted; of the closest, a bounded number is
listed. Costs a search among the clusters whose members are in several splits.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core import records
from pipelines.core.records import LEAKS, SPLITS
from pipelines.core.report import Json, Report
from pipelines.core.samples.clusters import NearDuplicates, Policy
from pipelines.core.samples.hamming import pairs_within

MAX_LISTED = 1000
"""Pairs in the table."""
_NUM_REPORTED = 10
_COLUMNS = ["key", "label", "split", "phash", "cluster"]


class Leaks(NamedTuple):
    """The pairs of a dataset."""

    policy: Policy
    """None are sought under `ignore`."""
    counts: Mapping[str, int]
    """All pairs, by splits: `train_val`, `train_test`, `val_test`."""
    table: pa.Table
    """`records.LEAKS`: at most MAX_LISTED pairs, those with the fewest different bits; the rule and
    the counts are in its metadata."""


def find(manifest: pa.Table, rule: NearDuplicates) -> Leaks:
    """The leaks among kept samples.

    Args:
        manifest: MANIFEST rows of all buckets, with their clusters.
        rule: with which the clusters were found.
    """
    rows = manifest.select(_COLUMNS).filter(pc.field("cluster") != "").sort_by("key").to_pylist()
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        splits[row["cluster"]].add(row["split"])
    apart = [row for row in rows if len(splits[row["cluster"]]) > 1]
    hashes, at = np.unique(
        np.array([row["phash"] for row in apart], np.uint64), return_inverse=True
    )
    near = pairs_within(hashes, rule.radius_bits)
    pairs = np.concatenate([np.tile(np.arange(len(hashes)), (2, 1)), near], axis=1)  # [2, P]
    bits = np.bitwise_count(hashes[pairs[0]] ^ hashes[pairs[1]])
    pairs = pairs[:, np.argsort(bits, kind="stable")]
    listed = sorted(itertools.islice(_listed(apart, at, pairs), MAX_LISTED), key=_order)
    counts = _counts(apart, at, pairs)
    how = {"near_duplicates": rule.policy, "radius_bits": rule.radius_bits, "num_pairs": counts}
    table = pa.Table.from_pylist(listed, schema=LEAKS)
    return Leaks(rule.policy, counts, records.with_metadata(table, how))


def summary(manifest: pa.Table, leaks: Leaks) -> Report:
    """The part of the report on near-duplicates that were kept; empty where none were sought."""
    if leaks.policy == "ignore":
        return {}
    rows = manifest.filter(pc.field("cluster") != "")
    sizes = Counter(rows["cluster"].to_pylist())
    labels: defaultdict[str, set[str]] = defaultdict(set)
    for cluster, label in zip(rows["cluster"].to_pylist(), rows["label"].to_pylist(), strict=True):
        labels[str(cluster)].add(str(label))
    pairs: list[Json] = [*leaks.table.slice(0, _NUM_REPORTED).to_pylist()]
    told: Report = {
        "num_clusters": sum(size > 1 for size in sizes.values()),
        "num_samples": sum(size for size in sizes.values() if size > 1),
        "largest_cluster": max(sizes.values(), default=0),
        "num_clusters_of_several_labels": sum(len(found) > 1 for found in labels.values()),
        "num_leaking_pairs": leaks.counts,
        "leaking_pairs": pairs,
    }
    return {"near_duplicates": told}


def _counts(
    rows: list[dict[str, Any]], at: npt.NDArray[np.intp], pairs: npt.NDArray[np.int64]
) -> dict[str, int]:
    """The number of pairs, from how often each hash occurs in each split."""
    held = np.zeros((int(at.max(initial=-1)) + 1, len(SPLITS)), np.int64)
    splits = np.array([SPLITS.index(row["split"]) for row in rows], np.int64)
    np.add.at(held, (at, splits), 1)
    one, other = held[pairs[0]], held[pairs[1]]  # [P, 3]
    is_same = (pairs[0] == pairs[1])[:, None]
    both = one.T @ np.where(is_same, 0, other)
    both = both + both.T + one.T @ np.where(is_same, other, 0)
    names = itertools.combinations(range(len(SPLITS)), 2)
    return {f"{SPLITS[a]}_{SPLITS[b]}": int(both[a, b]) for a, b in names}


def _listed(
    rows: list[dict[str, Any]], at: npt.NDArray[np.intp], pairs: npt.NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    """The pairs in the order of `pairs`, made one by one: there may be very many."""
    by_hash: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for row, own in zip(rows, at.tolist(), strict=True):
        by_hash[own].append(row)
    for a, b in pairs.T.tolist():
        same = itertools.combinations(by_hash[a], 2)
        for one, other in same if a == b else itertools.product(by_hash[a], by_hash[b]):
            if one["split"] != other["split"]:
                first, second = sorted((one, other), key=lambda it: str(it["key"]))
                yield {
                    **{f"{name}_a": first[name] for name in ("key", "label", "split")},
                    **{f"{name}_b": second[name] for name in ("key", "label", "split")},
                    "distance_bits": (first["phash"] ^ second["phash"]).bit_count(),
                }


def _order(pair: dict[str, Any]) -> tuple[Any, ...]:
    return pair["distance_bits"], pair["key_a"], pair["key_b"]
