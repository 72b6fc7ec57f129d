"""Cells of Parquet files: their bytes, or the reason why there are none."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.samples import cells, raw
from pipelines.core.samples.archives import ReadFault

VALUES = [bytes([number]) * 1000 for number in range(10)]


def write(path: Path, *, as_struct: bool = True, checksum: bool = False) -> None:
    values = [{"bytes": data, "path": None} for data in VALUES] if as_struct else VALUES
    table = pa.table({"image": values})
    pq.write_table(
        table,
        path,
        row_group_size=4,
        write_page_checksum=checksum,
        use_dictionary=False,
        compression="none",
    )


@pytest.mark.parametrize("as_struct", [True, False])
def test_every_cell_gives_its_own_bytes_from_any_thread(tmp_path: Path, as_struct: bool) -> None:
    write(tmp_path / "a.parquet", as_struct=as_struct)

    def read(row: int) -> bytes:
        return raw.read(tmp_path, "a.parquet", cells.cell("image", row), 1000)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, [*range(10), *range(9, -1, -1)])) == VALUES + VALUES[::-1]


@pytest.mark.parametrize(
    ("member", "max_bytes", "reason"),
    [
        ("image/10", 1000, "missing_file"),
        ("image/x", 1000, "missing_file"),
        ("other/1", 1000, "missing_file"),
        ("image/1", 999, "too_many_bytes"),
    ],
)
def test_cell_without_usable_bytes_has_a_reason(
    tmp_path: Path, member: str, max_bytes: int, reason: str
) -> None:
    write(tmp_path / "a.parquet")
    with pytest.raises(ReadFault) as caught:
        raw.read(tmp_path, "a.parquet", member, max_bytes)
    assert caught.value.reason == reason


def test_corrupt_page_costs_its_row_group_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path, checksum=True)
    data = path.read_bytes()
    path.write_bytes(data.replace(VALUES[5], b"!" * 1000, 1))
    for row in (4, 5, 7):
        with pytest.raises(ReadFault, match="row group 1 is damaged"):
            cells.read(path, f"image/{row}", 1000)
    assert cells.read(path, "image/3", 1000) == VALUES[3]
    assert cells.read(path, "image/8", 1000) == VALUES[8]


def test_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path)
    assert cells.read(path, "image/0", 1000) == VALUES[0]
    pq.write_table(pa.table({"image": [b"new"]}), path)
    assert cells.read(path, "image/0", 1000) == b"new"


def test_memory_for_row_groups_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_MAX_KEPT_BYTES", 5000)
    cells._kept.clear()
    write(tmp_path / "a.parquet")
    for row in range(10):
        cells.read(tmp_path / "a.parquet", f"image/{row}", 1000)
        assert sum(map(cells._size, cells._kept.values())) <= 5000
    assert len(cells._kept) == 1


def test_no_parquet_file_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ReadFault):
        cells.read(tmp_path / "a.parquet", "image/0", 1000)
    with pytest.raises(ReadFault, match="there is no"):
        raw.read(tmp_path, "b.parquet", "image/0", 1000)
