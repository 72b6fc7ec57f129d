"""Pairs of look-alikes in different splits: all are counted, the closest are listed."""

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.records import MANIFEST, SPLITS
from pipelines.core.samples import leaks
from pipelines.core.samples.clusters import NearDuplicates

RADIUS = 2
RULE = NearDuplicates("flag", RADIUS)


def manifest(rows: list[tuple[int, str]], cluster: str = "k000") -> pa.Table:
    """Kept samples of one cluster, with their hashes and splits."""
    blank = dict.fromkeys(MANIFEST.names)
    found = [
        {**blank, "key": f"k{at:03d}", "label": "cat", "split": split, "phash": phash}
        for at, (phash, split) in enumerate(rows)
    ]
    return pa.Table.from_pylist([{**row, "cluster": cluster} for row in found], schema=MANIFEST)


def expected(rows: list[tuple[int, str]]) -> list[tuple[int, str, str]]:
    """Distance and keys of each pair, by a comparison of all."""
    keyed = [(f"k{at:03d}", *row) for at, row in enumerate(rows)]
    pairs = [
        ((one[1] ^ other[1]).bit_count(), one[0], other[0])
        for one, other in itertools.combinations(keyed, 2)
        if one[2] != other[2]
    ]
    return sorted(pair for pair in pairs if pair[0] <= RADIUS)


ROWS = st.lists(st.tuples(st.integers(0, 31), st.sampled_from(SPLITS)), max_size=20)


@given(ROWS)
def test_leaks_are_the_pairs_of_different_splits_within_the_radius(
    rows: list[tuple[int, str]],
) -> None:
    found = leaks.find(manifest(rows), RULE)
    pairs = [(row["distance_bits"], row["key_a"], row["key_b"]) for row in found.table.to_pylist()]
    assert pairs == expected(rows)
    assert sum(found.counts.values()) == len(pairs)


def test_counts_are_by_splits() -> None:
    rows = [(0, "train"), (0, "train"), (0, "val"), (1, "test"), (63, "test")]
    counts = leaks.find(manifest(rows), RULE).counts
    assert counts == {"train_val": 2, "train_test": 2, "val_test": 1}


def test_more_pairs_than_are_listed_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "MAX_LISTED", 5)
    rows = [(0, "train")] * 300 + [(1, "test")] * 300 + [(1, "train")]
    found = leaks.find(manifest(rows), RULE)
    assert found.counts["train_test"] == 300 * 301
    assert found.table["distance_bits"].to_pylist() == [0] * 5


def test_no_leak_is_sought_outside_clusters() -> None:
    found = leaks.find(manifest([(0, "train"), (0, "test")], cluster=""), RULE)
    assert found.table.num_rows == sum(found.counts.values()) == 0


def test_summary_counts_what_is_alike() -> None:
    rows = manifest([(0, "train"), (1, "test"), (3, "train")])
    told: Any = leaks.summary(rows, leaks.find(rows, RULE))["near_duplicates"]
    assert (told["num_clusters"], told["num_samples"], told["largest_cluster"]) == (1, 3, 3)
    assert told["num_clusters_of_several_labels"] == 0
    assert told["num_leaking_pairs"] == {"train_val": 0, "train_test": 2, "val_test": 0}
    assert told["leaking_pairs"][0] == {
        "key_a": "k000",
        "label_a": "cat",
        "split_a": "train",
        "key_b": "k001",
        "label_b": "cat",
        "split_b": "test",
        "distance_bits": 1,
    }
