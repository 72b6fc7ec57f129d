"""Features: what one look at an image file found, as a row and as a table.

Apart from the looking, so that features can be stored and decided upon without a decoder at hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from pipelines.core.reasons import Reason

_MAX_DETAIL_CHARS = 160


@dataclass(frozen=True, slots=True)
class Limits:
    """What an image may cost before it is decoded."""

    max_bytes: int
    max_pixels: int


@dataclass(frozen=True, slots=True)
class Features:
    """What one look at a file found. A failed look has a `reason`, and zeros from there on."""

    reason: str = ""
    """A value of Reason, or empty: the image decodes."""
    detail: str = ""
    """The reason's particulars; the same on every machine."""
    sha256: str = ""
    """Of the file's bytes, hexadecimal; empty where the file was not read."""
    num_bytes: int = 0
    format: str = ""
    """Pillow's name: JPEG, PNG, GIF, WEBP, BMP, TIFF, AVIF or PPM, from the content."""
    width: int = 0
    """Pixels as stored, before the orientation is applied."""
    height: int = 0
    mode: str = ""
    """Pillow's mode of the stored pixels: L, RGB, CMYK, P, RGBA, 1, I;16, ..."""
    orientation: int = 1
    """EXIF orientation, 1..8; 1 where there is none or an invalid one."""
    num_frames: int = 0
    """More than 1 for an animation or several pages; the first is looked at."""
    brightness: float = 0.0
    """Mean of the gray image, 0..255."""
    contrast: float = 0.0
    """Standard deviation of the gray image, 0..127.5."""
    sharpness: float = 0.0
    """Variance of the Laplacian of the gray image, its shorter side 128 to 255 px where larger."""
    phash: int = 0
    """Perceptual hash of the gray image as shown, 64 bits: `images.phash`."""


_TYPES: dict[str, pa.DataType] = {
    "reason": pa.string(),
    "detail": pa.string(),
    "sha256": pa.string(),
    "num_bytes": pa.int64(),
    "format": pa.string(),
    "width": pa.int32(),
    "height": pa.int32(),
    "mode": pa.string(),
    "orientation": pa.int8(),
    "num_frames": pa.int32(),
    "brightness": pa.float32(),
    "contrast": pa.float32(),
    "sharpness": pa.float32(),
    "phash": pa.uint64(),
}
SCHEMA = pa.schema(_TYPES)
"""Features as columns."""


def to_table(rows: Iterable[Features]) -> pa.Table:
    """Features as a table, in their order; floats are rounded to 32 bits."""
    return pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA)


def from_table(table: pa.Table) -> Iterator[Features]:
    """The rows of `to_table`'s result."""
    columns = (table.column(name).to_pylist() for name in SCHEMA.names)
    return (Features(*row) for row in zip(*columns, strict=True))


def too_many_bytes(num_bytes: int, limits: Limits) -> Features:
    """Features of a file that is too large to be read."""
    detail = f"{num_bytes} bytes, at most {limits.max_bytes} wanted"
    return Features(reason=Reason.TOO_MANY_BYTES, detail=detail, num_bytes=num_bytes)


def tidy(message: str) -> str:
    """A library's message on one short line, without memory addresses."""
    plain = re.sub(r"<[^>]* at 0x[0-9a-f]+>", "the data", message)
    return " ".join(plain.split())[:_MAX_DETAIL_CHARS]
