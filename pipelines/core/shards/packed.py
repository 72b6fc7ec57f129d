"""Packed shards: what `shard` writes and `decode` reads, and how an image is taken out of a tar.

`index.arrow` beside the tars says where each image's bytes lie, so nobody needs to walk through a
tar; and their CRC-32C, so nobody takes damaged bytes for an image. Importing this costs nothing:
writing tars is in `pipelines.core.shards.tars`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import pyarrow as pa

from pipelines.core.errors import HeadraceError
from pipelines.core.storage import sha256_file

_COLUMNS: dict[str, pa.DataType] = {
    "split": pa.string(),
    "bucket": pa.int32(),
    "shard": pa.string(),  # file name of the tar
    "key": pa.string(),
    "offset": pa.int64(),  # of the image's bytes in the tar
    "length": pa.int64(),
    "crc32c": pa.uint32(),  # of the image's bytes
    "label": pa.int32(),
    "width": pa.int32(),  # pixels as stored, before the EXIF orientation
    "height": pa.int32(),
}
INDEX = pa.schema(_COLUMNS)
"""One row a sample, sorted by (split, bucket, key); metadata `labels` and `num_buckets`."""


def opened(tar: Path) -> BinaryIO:
    """The tar, open for `read`.

    Raises:
        HeadraceError: it is not there.
    """
    try:
        return tar.open("rb")
    except FileNotFoundError:
        raise HeadraceError(
            "A shard that the index names is not there.", where=str(tar), fix=_mend(tar)
        ) from None


def sha256(tar: Path) -> str:
    """SHA-256 of a tar, hexadecimal.

    Raises:
        HeadraceError: it is not there.
    """
    with opened(tar):
        return sha256_file(tar)


def read(file: BinaryIO, tar: Path, row: Mapping[str, Any]) -> bytes:
    """The bytes of one image, checked.

    Args:
        file: what `opened` gave for `tar`.
        tar: the tar, for the error.
        row: of INDEX.

    Raises:
        HeadraceError: the bytes are not those that were written; names the tar and the key.
    """
    file.seek(row["offset"])
    data = file.read(row["length"])
    found = google_crc32c.value(data)
    if found != row["crc32c"]:
        raise HeadraceError(
            "A shard is damaged: an image's bytes are not those that were written.",
            where=f"{tar}:{row['key']}",
            expected=f"CRC-32C {row['crc32c']:08x} of {row['length']} bytes",
            found=f"CRC-32C {found:08x} of {len(data)} bytes",
            fix=_mend(tar),
        )
    return data


def _mend(tar: Path) -> str:
    return f"`rm -f {tar} && dvc repro --force --single-item shard` packs the shards again"
