from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.commands.diff.sides import sides
from pipelines.commands.diff.version import File, Version
from pipelines.core.buckets import bucket_of
from pipelines.core.records import rejected_table

NUM_BUCKETS = 4
KEYS = [f"train/{number:05d}" for number in range(40)]


class Store:
    """Files by content, which count how often they are read."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()

    def file(self, table: pa.Table) -> File:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        data = sink.getvalue().to_pybytes()
        name = str(hash(data))

        def load() -> bytes:
            self.reads[name] += 1
            return data

        return File(name, name, load)

    def version(
        self, labels: dict[str, str], lost: dict[str, str], num_buckets: int = NUM_BUCKETS
    ) -> Version:
        buckets: dict[int, list[dict[str, str]]] = {number: [] for number in range(num_buckets)}
        for key, label in sorted(labels.items()):
            row = {"key": key, "label": label, "split": "train", "sha256": key}
            buckets[bucket_of(key, num_buckets)].append(row)
        schema = pa.schema([(name, pa.string()) for name in ("key", "label", "split", "sha256")])
        rows = [
            {"key": key, "path": key, "reason": reason, "detail": ""}
            for key, reason in lost.items()
        ]
        return Version(
            name="v",
            dataset="mill",
            digest=None,
            manifest={
                number: self.file(pa.Table.from_pylist(rows, schema=schema))
                for number, rows in buckets.items()
            },
            rejected={"decode": self.file(rejected_table(rows, "decode"))},
            late=frozenset({"decode"}),
        )


def test_only_buckets_that_differ_are_compared_but_all_are_counted() -> None:
    store, labels = Store(), dict.fromkeys(KEYS, "cat")
    before, after = sides(store.version(labels, {}), store.version({**labels, KEYS[0]: "dog"}, {}))
    own = [key for key in KEYS if bucket_of(key, NUM_BUCKETS) == bucket_of(KEYS[0], NUM_BUCKETS)]
    assert sorted(before.kept) == sorted(after.kept) == own
    assert (before.labels, after.labels) == ({"cat": 40}, {"cat": 39, "dog": 1})
    assert before.splits == {"train": 40}


def test_files_that_two_versions_share_are_read_once() -> None:
    store, labels = Store(), dict.fromkeys(KEYS, "cat")
    sides(store.version(labels, {}), store.version({**labels, KEYS[0]: "dog"}, {}))
    assert len(store.reads) == NUM_BUCKETS + 2
    assert set(store.reads.values()) == {1}


def test_what_a_later_stage_rejected_is_not_kept() -> None:
    store, labels = Store(), dict.fromkeys(KEYS, "cat")
    before, after = sides(
        store.version(labels, {}), store.version(labels, {KEYS[0]: "decode_failed"})
    )
    assert KEYS[0] in before.kept
    assert KEYS[0] not in after.kept
    assert after.labels == {"cat": 39}
    assert [row.key for row in after.rejected] == [KEYS[0]]


def test_other_numbers_of_buckets_compare_everything() -> None:
    store, labels = Store(), dict.fromkeys(KEYS, "cat")
    before, after = sides(store.version(labels, {}), store.version(labels, {}, num_buckets=8))
    assert sorted(before.kept) == sorted(after.kept) == KEYS
