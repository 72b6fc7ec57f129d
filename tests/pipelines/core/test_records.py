from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.core import records

TABLE = pa.table({"key": ["a", "b"], "value": [1, 2]})


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (records.write_parquet, records.read_parquet),
        (records.write_ipc, records.read_ipc),
    ],
)
def test_a_table_comes_back_with_its_metadata_and_equal_tables_are_equal_bytes(
    tmp_path: Path,
    write: Callable[[Path, pa.Table], None],
    read: Callable[[Path], pa.Table],
) -> None:
    table = records.with_metadata(TABLE, {"labels": ["cat", "dög"], "num_buckets": 8})
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    write(tmp_path / "a", table)
    write(tmp_path / "b", chunked)
    assert read(tmp_path / "a").equals(table)
    assert records.metadata(read(tmp_path / "a").schema) == {
        "labels": ["cat", "dög"],
        "num_buckets": 8,
    }
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_an_ipc_file_has_one_record_batch_even_when_empty(tmp_path: Path) -> None:
    for name, table in (("a", pa.concat_tables([TABLE, TABLE])), ("b", TABLE.slice(0, 0))):
        records.write_ipc(tmp_path / name, table)
        with pa.memory_map(str(tmp_path / name)) as source:
            assert pa.ipc.open_file(source).num_record_batches == 1


def test_rejected_rows_stand_in_the_order_of_their_keys() -> None:
    rows = [
        {"key": "b", "path": "2", "reason": "blank", "detail": ""},
        {"key": "a", "path": "9", "reason": "blank", "detail": ""},
        {"key": "a", "path": "1", "reason": "blank", "detail": ""},
    ]
    table = records.rejected_table(rows, "clean")
    assert table.schema == records.REJECTED
    assert table.column("path").to_pylist() == ["1", "9", "2"]
    assert set(table.column("stage").to_pylist()) == {"clean"}
