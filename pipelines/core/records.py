"""The tables that stages hand to each other, written so that equal tables are equal bytes.

Parquet for what people query (manifest, rejected), Arrow IPC for what programs map into memory
(indexes, decoded shards). Bytes are stable within one pyarrow version: both formats carry it or
depend on it, hence the pinned `requirements.lock`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.errors import HeadraceError

SPLITS = ("train", "val", "test")
_SEAL = "rows_sha256"

_MANIFEST_FIELDS: dict[str, pa.DataType] = {
    "key": pa.string(),
    "container": pa.string(),  # file below raw/
    "member": pa.string(),  # name inside that archive; empty for a loose file
    "label": pa.string(),
    "label_index": pa.int32(),
    "split": pa.string(),
    "sha256": pa.string(),  # of the file's bytes
    "num_bytes": pa.int64(),
    "format": pa.string(),  # Pillow's name: JPEG, PNG, WEBP, ...
    "width": pa.int32(),  # pixels as stored, before the EXIF orientation
    "height": pa.int32(),
    "mode": pa.string(),  # Pillow's mode: L, RGB, CMYK, I;16, ...
    "orientation": pa.int8(),  # EXIF, 1..8
    "num_frames": pa.int32(),
    "brightness": pa.float32(),  # mean of the gray image, 0..255
    "contrast": pa.float32(),  # standard deviation of the gray image
    "sharpness": pa.float32(),  # variance of the Laplacian of the gray image
    "phash": pa.uint64(),  # perceptual hash of the image as shown
    "cluster": pa.string(),  # key of what stands for its near-duplicates; empty without such
}

MANIFEST = pa.schema(_MANIFEST_FIELDS)
"""One row a kept sample."""

REJECTED = pa.schema(
    [
        ("key", pa.string()),
        ("path", pa.string()),  # where it came from, for people
        ("reason", pa.string()),  # a value of pipelines.core.reasons.Reason
        ("detail", pa.string()),
        ("stage", pa.string()),
    ]
)
"""One row a dropped sample."""

_LEAKING = ("key", "label", "split")
_LEAKS_FIELDS: dict[str, pa.DataType] = {
    **{f"{name}_a": pa.string() for name in _LEAKING},
    **{f"{name}_b": pa.string() for name in _LEAKING},
    "distance_bits": pa.int32(),  # between their perceptual hashes
}
LEAKS = pa.schema(_LEAKS_FIELDS)
"""One row a pair of kept near-duplicates in different splits."""


def with_metadata(table: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """Replace the schema metadata of `table` by `values`, as JSON under `headrace.<name>`."""
    encoded = {f"headrace.{name}": json.dumps(value) for name, value in sorted(values.items())}
    return table.replace_schema_metadata(encoded)


def metadata(schema: pa.Schema) -> dict[str, Any]:
    """The values that `with_metadata` stored, decoded."""
    stored = schema.metadata or {}
    prefix = b"headrace."
    return {
        name.removeprefix(prefix).decode(): json.loads(value)
        for name, value in stored.items()
        if name.startswith(prefix)
    }


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write one Parquet file with a checksum a page; equal tables give equal bytes.

    It goes into a stage's temporary folder: the runner flushes that and renames it as a whole.
    """
    pq.write_table(table.combine_chunks(), path, compression="zstd", write_page_checksum=True)


def read_parquet(path: Path) -> pa.Table:
    """Read one Parquet file of a stage, with its schema metadata; its checksums are compared.

    Raises:
        HeadraceError: the file is damaged.
    """
    with _damage_told(path):
        return pq.ParquetFile(path, page_checksum_verification=True).read()


def read_parquet_schema(path: Path) -> pa.Schema:
    """Read the schema alone; raises as `read_parquet`."""
    with _damage_told(path):
        return pq.read_schema(path)


@contextlib.contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise HeadraceError(
            "A table that a stage wrote is damaged.",
            where=str(path),
            found=str(error).splitlines()[0],
            fix=f"`rm -f {path} && dvc repro` makes it again",
        ) from None


def write_ipc(path: Path, table: pa.Table) -> None:
    """Write one uncompressed Arrow IPC file of a single record batch, to be mapped into memory.

    An empty table writes one empty batch. Goes into a stage's temporary folder, as `write_parquet`.
    """
    whole = table.combine_chunks()
    batches = whole.to_batches() or [pa.RecordBatch.from_pylist([], schema=whole.schema)]
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def sealed(table: pa.Table) -> pa.Table:
    """Put the digest of the rows into the schema metadata, where `read_ipc` looks for it."""
    return with_metadata(table, {**metadata(table.schema), _SEAL: _rows_sha256(table)})


def read_ipc(path: Path, *, must_be_sound: bool = True) -> pa.Table:
    """Map an Arrow IPC file into memory and return it as a table without copying.

    Args:
        path: the file.
        must_be_sound: whether to read all of a table that was `sealed`, and compare its digest.

    Raises:
        HeadraceError: the file is cut, its frame is damaged, or its rows are not those that were
            sealed.
    """
    with _damage_told(path), pa.memory_map(str(path), "r") as source:
        table = pa.ipc.open_file(source).read_all()
        told = metadata(table.schema)
        expected = told.pop(_SEAL, None)
        if expected is None:
            return table
        if must_be_sound and _rows_sha256(table) != expected:
            raise pa.ArrowInvalid(f"its rows do not give the SHA-256 {expected}")
        return with_metadata(table, told)


def _rows_sha256(table: pa.Table) -> str:
    """Over rows and types, whatever the metadata and the chunks; hexadecimal."""
    whole = table.replace_schema_metadata(None).combine_chunks()
    with pa.BufferOutputStream() as sink:
        with pa.ipc.new_stream(sink, whole.schema) as writer:
            writer.write_table(whole)
        return hashlib.sha256(sink.getvalue()).hexdigest()


def rejected_table(rows: list[dict[str, str]], stage: str) -> pa.Table:
    """Rows of `key, path, reason, detail` as a REJECTED table, in its order: by key, then path."""
    complete = [{**row, "stage": stage} for row in rows]
    complete.sort(key=lambda row: (row["key"], row["path"], row["reason"]))
    return pa.Table.from_pylist(complete, schema=REJECTED)
