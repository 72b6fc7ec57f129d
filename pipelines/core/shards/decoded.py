"""Decoded shards: what `decode` writes and the trainer's reader maps into memory.

A shard `<split>-<bucket>.arrow` is an uncompressed Arrow IPC file of one record batch, rows
sorted by key, so its images are one contiguous run of bytes in the file:

- `image`: fixed-shape tensor [H, W, C] of uint8, C 1 or 3
- `key`: string
- `label`: int32, class index
- `crc32c`: uint32, CRC-32C of the row's H*W*C image bytes

`index.arrow` has one row a shard, sorted by (split, bucket), and the SHA-256 of each; so the
SHA-256 of its own bytes, the *dataset version*, stands for every pixel. Its metadata hold the
format's number, `shape`, `labels`, `num_buckets`, and `mean` and `std` of each channel over the
train split, on a scale of 0 to 1.

Costs one copy of the images in memory while a shard is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

FORMAT = "1"

_COLUMNS: dict[str, pa.DataType] = {
    "split": pa.string(),
    "bucket": pa.int32(),
    "shard": pa.string(),  # file name
    "num_rows": pa.int64(),
    "num_bytes": pa.int64(),  # size of the file
    "sha256": pa.string(),  # of the file
}
INDEX = pa.schema(_COLUMNS)
"""One row a shard that has rows."""

_MAX_UINT32_ROWS = (1 << 32) // 255**2  # rows whose squares add up without overflow
_DIGITS = 6


def write_shard(
    path: Path, images: npt.NDArray[np.uint8], keys: Sequence[str], labels: Sequence[int]
) -> None:
    """Write one decoded shard.

    Args:
        path: where to.
        images: [n, H, W, C] uint8, C-contiguous.
        keys: n of them, ascending.
        labels: n class indices.
    """
    shape = images.shape[1:]
    storage = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), math.prod(shape))
    tensor = pa.fixed_shape_tensor(pa.uint8(), shape)
    columns = {
        "image": pa.ExtensionArray.from_storage(tensor, storage),
        "key": pa.array(keys, pa.string()),
        "label": pa.array(labels, pa.int32()),
        "crc32c": pa.array([google_crc32c.value(image.tobytes()) for image in images], pa.uint32()),
    }
    schema = pa.schema([pa.field(name, it.type, nullable=False) for name, it in columns.items()])
    batch = pa.record_batch(list(columns.values()), schema=schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)


@dataclass(frozen=True)
class Moments:
    """Exact sums over the pixels of images, channel by channel: the same in any order of adding."""

    num_pixels: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]

    @classmethod
    def of(cls, images: npt.NDArray[np.uint8]) -> Self:
        """The sums of `images`, [n, H, W, C] uint8."""
        num, height, width, channels = images.shape
        rows = images.reshape(num * height, width * channels)
        sums = np.zeros(width * channels, np.int64)
        squares = np.zeros(width * channels, np.int64)
        for start in range(0, len(rows), _MAX_UINT32_ROWS):
            part = rows[start : start + _MAX_UINT32_ROWS]
            sums += part.sum(0, dtype=np.uint32)
            squares += np.einsum("ij,ij->j", part, part, dtype=np.uint32, casting="unsafe")
        return cls(
            num * height * width,
            tuple(sums.reshape(width, channels).sum(0).tolist()),
            tuple(squares.reshape(width, channels).sum(0).tolist()),
        )

    @classmethod
    def total(cls, parts: Iterable[Self], num_channels: int) -> Self:
        """The sums over all of `parts`."""
        zero = (0, (0,) * num_channels, (0,) * num_channels)
        num_pixels, sums, squares = zero
        for part in parts:
            num_pixels += part.num_pixels
            sums = tuple(a + b for a, b in zip(sums, part.sums, strict=True))
            squares = tuple(a + b for a, b in zip(squares, part.squares, strict=True))
        return cls(num_pixels, sums, squares)

    @property
    def mean(self) -> tuple[float, ...] | None:
        """Mean of each channel, 0..1, to six digits; None without pixels."""
        if not self.num_pixels:
            return None
        return tuple(round(total / self.num_pixels / 255, _DIGITS) for total in self.sums)

    @property
    def std(self) -> tuple[float, ...] | None:
        """Standard deviation of each channel, 0..0.5, to six digits; None without pixels."""
        if not self.num_pixels:
            return None
        return tuple(
            round(math.sqrt(self.num_pixels * square - total**2) / self.num_pixels / 255, _DIGITS)
            for total, square in zip(self.sums, self.squares, strict=True)
        )
