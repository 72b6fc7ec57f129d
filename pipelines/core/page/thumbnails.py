"""Small pictures of raw files, as `data:` URLs for a page that needs nothing beside itself.

What cannot be shown gives None, never an exception: most of these files were rejected for a reason.
A file whose content ends early is shown as far as it goes.
"""

from __future__ import annotations

import base64
import io
import threading
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageFile, ImageOps

from pipelines.core.samples import raw

MAX_FILE_BYTES = 64 << 20
MAX_PIXELS = 64_000_000
"""Larger images are not decoded for a thumbnail."""
_MAX_PNG_BYTES = 2048
_JPEG_QUALITY = 75
_truncated = threading.Lock()


class Place(NamedTuple):
    """Where a file lies."""

    container: str
    """File below raw/."""
    member: str
    """Its name in that archive; empty for a loose file."""


def place_of(folder: Path, path: str) -> Place | None:
    """The place of a path that was made for people, `2026/cats.zip/cat/1.jpg`.

    None where no file of raw/ is meant: a line of a table, or a link that leads elsewhere.
    """
    parts = path.split("/")
    for length in range(len(parts), 0, -1):
        container = "/".join(parts[:length])
        file = folder / container
        if _is_file(file) and file.resolve().is_relative_to(folder.resolve()):
            return Place(container, "/".join(parts[length:]))
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a null byte
        return False


def thumbnail(folder: Path, place: Place, side_px: int) -> str | None:
    """A picture of a file of raw/, as a `data:` URL; None where none can be made.

    Args:
        folder: raw/.
        place: of the file.
        side_px: its longer side; smaller images keep their size.
    """
    try:
        data = raw.read(folder, place.container, place.member, MAX_FILE_BYTES)
    except raw.ReadFault:
        return None
    return of_bytes(data, side_px)


def of_bytes(data: bytes, side_px: int) -> str | None:
    """The same of an image file's bytes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            small = _shrunk(data, side_px)
            return None if small is None else _url(small)
    except Exception:  # noqa: BLE001 - Pillow raises anything; bad data has no picture.
        return None


def _shrunk(data: bytes, side_px: int) -> Image.Image | None:
    # Pillow's setting is one for the process; two threads must not undo each other's.
    with _truncated, Image.open(io.BytesIO(data)) as image:
        if image.width * image.height > MAX_PIXELS:
            return None
        image.draft("RGB", (side_px, side_px))
        before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
        try:
            image.load()
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = before
        upright = _eight_bits(ImageOps.exif_transpose(image))
    upright.thumbnail((side_px, side_px), Image.Resampling.BOX)
    return upright


def _eight_bits(image: Image.Image) -> Image.Image:
    """The image as L or RGB: deeper gray stretched over its own range, alpha on white."""
    if image.mode.startswith(("I", "F")):
        values: Any = np.nan_to_num(np.asarray(image, np.float64))
        span = max(float(values.max() - values.min()), 1e-9)
        return Image.fromarray(((values - values.min()) / span * 255).astype(np.uint8))
    if image.mode in ("1", "L"):
        return image.convert("L")
    if image.has_transparency_data:
        above = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", above.size, "white"), above).convert("RGB")
    return image.convert("RGB")


def _url(image: Image.Image) -> str:
    """PNG where that is small, for its sharp pixels; else JPEG."""
    png = io.BytesIO()
    image.save(png, "PNG", optimize=True)
    if png.tell() <= _MAX_PNG_BYTES:
        return _encoded("png", png)
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=_JPEG_QUALITY, optimize=True)
    return _encoded("jpeg", jpeg)


def _encoded(kind: str, file: io.BytesIO) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
