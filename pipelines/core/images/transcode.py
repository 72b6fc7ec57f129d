"""Bytes of an image that DALI can decode: as they are, or turned into PNG without loss.

DALI (nvImageCodec 0.9) decodes JPEG, PNG, WebP, BMP, PNM and most of TIFF to the pixels that
Pillow sees. What it cannot decode, or gets wrong, was found by comparing the two over formats and
modes; `tests/pipelines/core/test_transcode.py` repeats that comparison:

- GIF and AVIF: unknown to it.
- An animated WebP: its first frame is wanted, as of a GIF. A lossless WebP with EXIF: refused.
- TIFF other than 8-bit gray, 8-bit RGB and 16-bit gray: bilevel without a BitsPerSample tag is
  refused, gray with alpha comes out wrong, palettes are rounded differently.

The PNG holds the pixels that Pillow decodes, in the image's own mode where PNG has it: alpha,
palette and 16 bits are kept. EXIF goes along, so the orientation is applied once, by `decode`, as
it is for every other format. An ICC profile goes along too.

Costs a decode and a PNG compression, tens of milliseconds a megapixel; nothing for other images.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from PIL import Image

# `clean` has refused images of too many pixels; Pillow's own limit is another.
Image.MAX_IMAGE_PIXELS = None
# Pillow warns of odd metadata on standard error; `clean` has looked at that too.
warnings.filterwarnings("ignore", module=r"PIL\.")

_EXTENSIONS = {
    "JPEG": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "BMP": "bmp",
    "TIFF": "tif",
    "PPM": "ppm",
}
_TIFF_MODES = ("L", "RGB", "I;16", "I;16B")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
_ORIENTATION_TAG = 0x0112


class Encoded(NamedTuple):
    """An image file that DALI can decode."""

    extension: str
    """Of its format: jpg, png, webp, bmp, tif or ppm."""
    data: bytes
    is_transcoded: bool
    """Whether `data` is a PNG that was made here."""


def decodable(data: bytes, image_format: str, mode: str, num_frames: int) -> Encoded:
    """The image as DALI can decode it.

    Args:
        data: the whole file.
        image_format: Pillow's name, from the content.
        mode: Pillow's mode of the stored pixels.
        num_frames: more than 1 for an animation.

    Raises:
        Exception: whatever Pillow raises for an image that it cannot decode.
    """
    if _is_decodable(data, image_format, mode, num_frames):
        return Encoded(_EXTENSIONS[image_format], data, is_transcoded=False)
    return Encoded("png", _to_png(data, image_format), is_transcoded=True)


def _is_decodable(data: bytes, image_format: str, mode: str, num_frames: int) -> bool:
    match image_format:
        case "JPEG" | "PNG" | "BMP" | "PPM":
            return True
        case "WEBP":
            return num_frames == 1 and not {b"VP8L", b"EXIF"} <= set(_riff_chunks(data))
        case "TIFF":
            return mode in _TIFF_MODES
        case _:
            return False


def _riff_chunks(data: bytes) -> Iterator[bytes]:
    """Names of the chunks of a RIFF file (RFC 9649, section 2.3)."""
    at = 12
    while at + 8 <= len(data):
        name, length = struct.unpack_from("<4sI", data, at)
        yield name
        at += 8 + length + length % 2


def _to_png(data: bytes, image_format: str) -> bytes:
    """The first frame as PNG, with its EXIF."""
    with Image.open(io.BytesIO(data), formats=[image_format]) as image:
        image.load()
        # CMYK and YCbCr have no PNG; RGB is what a viewer, and DALI, would make of them.
        pixels = image if image.mode in _PNG_MODES else image.convert(_png_mode(image.mode))
        buffer = io.BytesIO()
        pixels.save(buffer, "PNG", exif=_exif(image, image_format))
    return buffer.getvalue()


def _png_mode(mode: str) -> str:
    """The mode that PNG has for one that it lacks."""
    match mode:
        case "I;16B" | "I;16L" | "I;16N":
            return "I;16"
        case "La":
            return "LA"
        case "RGBa" | "PA":
            return "RGBA"
        case _:
            return "RGB"


def _exif(image: Image.Image, image_format: str) -> bytes:
    """EXIF to carry over, encoded; empty where there is none.

    Of a TIFF only the orientation: its other tags say how the file is laid out.
    """
    try:
        exif = image.getexif()
        if exif and image_format != "TIFF":
            return exif.tobytes()
        orientation = exif.get(_ORIENTATION_TAG, 1)
    except Exception:  # noqa: BLE001 - Damaged EXIF does not damage the picture.
        return b""
    if orientation not in range(2, 9):
        return b""
    kept = Image.Exif()
    kept[_ORIENTATION_TAG] = orientation
    return kept.tobytes()
