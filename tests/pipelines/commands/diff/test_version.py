import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.commands.diff.version import File
from pipelines.core.errors import HeadraceError


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": ["a"], "label": ["cat"]}), sink)
    return sink.getvalue().to_pybytes()


def test_only_the_wanted_columns_are_read() -> None:
    assert File("x", "0", parquet).rows(["label"]).to_pydict() == {"label": ["cat"]}


@pytest.mark.parametrize("data", [b"", b"PAR1", parquet()[:-9], b"x" * 100])
def test_a_damaged_file_is_named(data: bytes) -> None:
    with pytest.raises(HeadraceError, match="damaged") as caught:
        File("clean/00000.parquet at v1", "0", lambda: data).rows(["key"])
    assert caught.value.where == "clean/00000.parquet at v1"
