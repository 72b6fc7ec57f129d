import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.core import records
from pipelines.core.page import facts
from pipelines.core.page.facts import Facts, Folders
from pipelines.core.page.thumbnails import Place
from tests.line import make_line
from tests.messy import messy_files
from tests.project import Shared


@pytest.fixture
def line(shared: Shared) -> Path:
    """The messy dataset behind `clean`, `shard` and `decode`."""
    return shared("line", make_line)


def read(line: Path, num_examples: int = 4) -> Facts:
    names = Folders.__dataclass_fields__
    return facts.read(Folders(**{name: line / name for name in names}), num_examples)


def test_every_file_is_kept_or_in_the_group_of_its_reason(line: Path) -> None:
    found = read(line)
    expected = Counter(reason for _, reason in messy_files().values())
    assert found.num_kept == expected.pop(None)
    assert {group.reason: group.num_samples for group in found.groups} == expected
    assert found.num_rejected == expected.total()


def test_groups_have_their_meaning_and_the_largest_stands_first(line: Path) -> None:
    groups = read(line).groups
    sizes = [group.num_samples for group in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert all(group.stage == "clean" and group.meaning for group in groups)


def test_examples_are_bounded_and_know_their_file(line: Path) -> None:
    groups = {group.reason: group for group in read(line, num_examples=1).groups}
    assert all(len(group.examples) == 1 for group in groups.values())
    (example,) = groups["no_label"].examples
    assert example.place == Place("astray.jpg", "")
    assert read(line, num_examples=0).groups[0].examples == ()


def test_classes_are_counted_by_split(line: Path) -> None:
    found = read(line)
    manifests = [
        records.read_parquet(path) for path in sorted((line / "clean/manifest").glob("*.parquet"))
    ]
    rows = pa.concat_tables(manifests).to_pylist()
    expected = Counter((row["label"], row["split"]) for row in rows)
    told = {
        (label, split): int(found.classes[row, column])
        for row, label in enumerate(found.labels)
        for column, split in enumerate(records.SPLITS)
    }
    assert told == {cell: expected[cell] for cell in told}
    assert expected.total() == found.num_kept


def test_columns_hold_every_kept_sample_once(line: Path) -> None:
    found = read(line)
    for by_split in found.numbers.values():
        assert [len(by_split[split]) for split in records.SPLITS] == found.classes.sum(0).tolist()
    assert np.concatenate(list(found.numbers["aspect"].values())).min() >= 1
    for counts in found.names.values():
        assert (sum(counts.values()) == found.classes.sum(0)).all()
    assert found.names["format"]["AVIF"].sum() == 2


@pytest.fixture
def copy(line: Path, tmp_path: Path) -> Path:
    return shutil.copytree(line, tmp_path / "copy")


def test_what_decode_rejects_is_found_in_raw_by_its_key(copy: Path) -> None:
    key = str(records.read_ipc(copy / "shards" / "index.arrow")["key"][0].as_py())
    row = {"key": key, "path": f"train-00000.tar:{key}", "reason": "decode_failed", "detail": "x"}
    path = copy / "decoded" / "rejected.parquet"
    before = read(copy)
    records.write_parquet(path, records.rejected_table([row], "decode"))
    after = read(copy)
    group = after.groups[-1]
    assert (group.stage, group.reason, group.num_samples) == ("decode", "decode_failed", 1)
    place = group.examples[0].place
    assert place is not None
    assert (copy / "raw" / place.container).is_file()
    assert place.container.startswith(key.rpartition("/")[0])
    assert after.num_kept == before.num_kept - 1


def test_what_a_stage_between_drops_is_counted_as_filtered(copy: Path) -> None:
    path = copy / "shards" / "index.arrow"
    index = records.read_ipc(path)
    lost = str(index["key"][0].as_py())
    rest = pa.ipc.open_stream(_stream(index.slice(1))).read_all()
    records.write_ipc(path, rest)
    found = read(copy)
    group = next(group for group in found.groups if group.reason == facts.FILTERED)
    assert [example.key for example in group.examples] == [lost]
    assert found.num_kept + found.num_rejected == len(messy_files())


def _stream(table: pa.Table) -> pa.Buffer:
    """A copy of a table that no file is behind, so that the file can be written anew."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
