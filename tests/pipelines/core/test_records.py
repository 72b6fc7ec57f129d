from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines.core import records
from pipelines.core.errors import HeadraceError

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


def test_a_flipped_bit_among_the_values_of_a_parquet_file_never_goes_unnoticed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.parquet"
    records.write_parquet(path, TABLE)
    data = path.read_bytes()
    footer_bytes = int.from_bytes(data[-8:-4], "little")  # Which has no checksum.
    told = []
    for place in range(len(data) - 8 - footer_bytes):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        try:
            assert records.read_parquet(path).equals(TABLE), place
        except HeadraceError as error:
            told.append(error)
    assert len(told) > (len(data) - footer_bytes) // 4
    assert {error.where for error in told} == {str(path)}
    assert {error.fix for error in told} == {f"`rm -f {path} && dvc repro` makes it again"}


@pytest.mark.parametrize("read", [records.read_parquet, records.read_parquet_schema])
def test_a_cut_parquet_file_is_told(tmp_path: Path, read: Callable[[Path], object]) -> None:
    records.write_parquet(tmp_path / "a", TABLE)
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-9])
    with pytest.raises(HeadraceError, match="is damaged"):
        read(tmp_path / "a")


def test_a_cut_ipc_file_is_told(tmp_path: Path) -> None:
    records.write_ipc(tmp_path / "a", TABLE)
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-9])
    with pytest.raises(HeadraceError, match="is damaged"):
        records.read_ipc(tmp_path / "a")


def test_one_flipped_bit_in_a_sealed_table_is_told(tmp_path: Path) -> None:
    keys = pa.table({"key": ["cat/1", "cat/2", "dog/3", None]})
    table = records.with_metadata(pa.concat_tables([keys, keys]).slice(1), {"labels": ["cat"]})
    records.write_ipc(tmp_path / "a", records.sealed(table))
    sound = records.read_ipc(tmp_path / "a")
    assert sound.equals(table)
    assert records.metadata(sound.schema) == {"labels": ["cat"]}
    data = bytearray((tmp_path / "a").read_bytes())
    data[data.index(b"dog/3")] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(HeadraceError, match="its rows do not give the SHA-256"):
        records.read_ipc(tmp_path / "a")
    assert records.read_ipc(tmp_path / "a", must_be_sound=False)["key"][1].as_py() == "eog/3"


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
