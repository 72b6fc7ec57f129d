"""Images in the cells of Parquet files, read in place.

A cell is named by its column and row: `image/17` is row 17, counted from 0, of the column `image`,
which holds bytes or, as Hugging Face writes it, a struct of `bytes` and `path`.

Parquet can be read by row groups only, so one is decoded as a whole and the last ones are kept, up
to 256 MiB a process. Reading in the order of rows decodes each group once. Other orders decode a
group again once it was forgotten; smaller row groups make that cheaper. Pages with a checksum are
verified. Safe to call from any number of threads.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.reasons import Reason
from pipelines.core.samples.archives import ReadFault, check_size

ENDING = ".parquet"
_MAX_KEPT_BYTES = 256 << 20
_MAX_GROUP_BYTES = 4 << 30


class _File(NamedTuple):
    """A file in one state of it."""

    path: str
    num_bytes: int
    modified_ns: int


class _Footer(NamedTuple):
    """What is read of a file once: its footer, and the first row of each row group and the end."""

    metadata: pq.FileMetaData
    starts: tuple[int, ...]


Group: TypeAlias = "pa.ChunkedArray[Any] | ReadFault"
_kept: OrderedDict[tuple[_File, str, int], Group] = OrderedDict()
_lock = threading.Lock()


def cell(column: str, row: int) -> str:
    """The name of a cell.

    >>> cell("image", 17)
    'image/17'
    """
    return f"{column}/{row}"


def read(path: Path, member: str, max_bytes: int) -> bytes:
    """The bytes of a cell.

    Args:
        path: of the Parquet file.
        member: as `cell` names it.
        max_bytes: refuse larger ones.

    Raises:
        ReadFault: no such cell, empty, too large, or the file is damaged there.
        OSError: the file cannot be opened.
    """
    found = path.stat()
    file = _File(str(path), found.st_size, found.st_mtime_ns)
    column, _, number = member.rpartition("/")
    try:
        footer = _footer(file)
    except pa.ArrowException as error:
        raise ReadFault(Reason.UNREADABLE, _first_line(error)) from None
    if not number.isdecimal() or int(number) >= footer.starts[-1]:
        raise ReadFault(Reason.MISSING_FILE, f"{path.name} has no row {number}")
    group = bisect.bisect_right(footer.starts, int(number)) - 1
    values = _group(file, footer, column, group)
    if isinstance(values, ReadFault):
        raise ReadFault(values.reason, values.detail)
    value = values[int(number) - footer.starts[group]]
    data = value.as_buffer()
    if data is None:
        raise ReadFault(Reason.MISSING_FILE, "the row holds no bytes of an image")
    check_size(data.size, max_bytes)
    return bytes(data.to_pybytes())


@functools.lru_cache(maxsize=64)
def _footer(file: _File) -> _Footer:
    metadata = pq.read_metadata(file.path)
    sizes = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
    return _Footer(metadata, tuple(itertools.accumulate(sizes, initial=0)))


def _group(file: _File, footer: _Footer, column: str, group: int) -> Group:
    """A column of a row group, from memory where it was read lately; a fault is kept as well."""
    key = (file, column, group)
    with _lock:
        values = _kept.get(key)
        if values is None:
            values = _kept[key] = _decode(file, footer, column, group)
        _kept.move_to_end(key)
        total = sum(_size(other) for other in _kept.values())
        while total > _MAX_KEPT_BYTES and len(_kept) > 1:
            total -= _size(_kept.popitem(last=False)[1])
    return values


def _size(group: Group) -> int:
    return 0 if isinstance(group, ReadFault) else int(group.nbytes)


def _decode(file: _File, footer: _Footer, column: str, group: int) -> Group:
    size = footer.metadata.row_group(group).total_byte_size
    if size > _MAX_GROUP_BYTES:
        detail = f"row group {group} holds {size:,} bytes: write smaller ones"
        return ReadFault(Reason.TOO_MANY_BYTES, detail)
    try:
        with pq.ParquetFile(
            file.path, metadata=footer.metadata, page_checksum_verification=True
        ) as opened:
            values = _bytes_of(opened, column, group)
    except (pa.ArrowException, OSError) as error:
        detail = f"row group {group} is damaged: {_first_line(error)}"
        return ReadFault(Reason.UNREADABLE, detail)
    if values is None:
        return ReadFault(Reason.MISSING_FILE, f"column {column!r} holds no bytes")
    return values


def _bytes_of(opened: pq.ParquetFile, column: str, group: int) -> pa.ChunkedArray[Any] | None:
    if column not in opened.schema_arrow.names:
        return None
    inside = is_struct(opened.schema_arrow.field(column).type)
    name = f"{column}.bytes" if inside else column
    table = opened.read_row_group(group, columns=[name], use_threads=False)
    return (table.flatten() if inside else table).column(0)


def fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    """The fields of a struct; none of another type."""
    if not isinstance(kind, pa.StructType):
        return {}
    return {field.name: field.type for field in kind}


def is_struct(kind: pa.DataType) -> bool:
    """Whether a column is a struct with bytes, as Hugging Face writes images."""
    return "bytes" in fields(kind)


def holds_images(kind: pa.DataType) -> bool:
    """Whether images can be read from a column of this type."""
    flat = fields(kind).get("bytes", kind)
    return bool(pa.types.is_binary(flat) or pa.types.is_large_binary(flat))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
