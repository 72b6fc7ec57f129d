"""One pass over the bytes of an image file: what it is, how it looks, whether it can be used.

`inspect` takes bytes and gives `Features`; it never raises, whatever the bytes are. It knows
nothing of thresholds, apart from the two limits that guard the decoder, so features can be stored
and decided upon again. All sums are over whole numbers: the same bytes give the same features on
every machine.

Costs, for a JPEG of 500 x 375 pixels: about 0.3 ms, most of it libjpeg at a reduced scale, which
reads all of the entropy-coded data and so finds what is missing. Other formats are decoded in full.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from pipelines.core.images.containers import SUFFIXES, ends_early, foreign_format_of, format_of
from pipelines.core.images.features import Features, Limits, tidy, too_many_bytes
from pipelines.core.images.phash import phash
from pipelines.core.reasons import Reason

# Our own limit is checked before any decoding; Pillow's would warn, or refuse with another reason.
Image.MAX_IMAGE_PIXELS = None
# Pillow warns of odd metadata on standard error, once a place; what matters becomes a reason.
warnings.filterwarnings("ignore", module=r"PIL\.")

MIN_GRAY_SIDE_PX = 128
ORIENTATION_TAG = 0x0112

# 32-bit pixels carry no range, so there is no right way to make 8 bits of them.
_MODES_WITHOUT_RANGE = ("I", "F", "LAB")


def inspect(data: bytes, name: str, limits: Limits) -> Features:
    """Look at the bytes of a file.

    Args:
        data: the whole file.
        name: its name, of which only the ending matters: it tells a damaged image from another
            kind of file.
        limits: files beyond either are not decoded.
    """
    found = Features(sha256=hashlib.sha256(data).hexdigest(), num_bytes=len(data))
    if len(data) > limits.max_bytes:
        return too_many_bytes(len(data), limits)
    image_format = format_of(data)
    if image_format is None:
        return _not_an_image(data, name, found)
    found = replace(found, format=image_format)
    try:
        return _inspect_image(data, found, limits)
    except Exception as error:  # noqa: BLE001 - Decoders raise anything; bad data is a row.
        return _failed(data, found, error)


def claims_image(name: str) -> bool:
    """Whether a file's name is that of an image: all that `inspect` makes of a name."""
    return posixpath.splitext(name)[1].lower() in SUFFIXES


def _not_an_image(data: bytes, name: str, found: Features) -> Features:
    foreign = foreign_format_of(data)
    if not data:
        return replace(found, reason=Reason.UNREADABLE, detail="the file is empty")
    if foreign:
        return replace(found, reason=Reason.UNSUPPORTED_FORMAT, detail=f"the content is {foreign}")
    if claims_image(name):
        detail = "the content is in no known image format"
        return replace(found, reason=Reason.UNREADABLE, detail=detail)
    return replace(found, reason=Reason.UNSUPPORTED_FORMAT, detail="not an image file")


def _failed(data: bytes, found: Features, error: Exception) -> Features:
    """The reason for a decoder's exception."""
    message = str(error)
    told = message.lower()
    is_short = any(word in told for word in ("premature end of jpeg file", "truncated", "eof"))
    is_short = is_short or ends_early(data, found.format) or _jpeg_lacks_end(data, found.format)
    reason = Reason.TRUNCATED if is_short else Reason.UNREADABLE
    return replace(found, reason=reason, detail=tidy(message or type(error).__name__))


def _jpeg_lacks_end(data: bytes, image_format: str) -> bool:
    """Whether no end of image follows the last start of a scan (or there is neither)."""
    return image_format == "JPEG" and data.rfind(b"\xff\xd9") <= data.rfind(b"\xff\xda")


def _inspect_image(data: bytes, found: Features, limits: Limits) -> Features:
    if found.format == "WEBP" and (canvas := _webp_canvas(data)) is not None:
        width, height = canvas  # Pillow lets libwebp allocate the canvas when it opens the file.
        if width * height > limits.max_pixels:
            return _too_many_pixels(replace(found, width=width, height=height), limits)
    with Image.open(io.BytesIO(data), formats=[found.format]) as image:
        width, height = image.size
        found = replace(found, width=width, height=height, mode=image.mode)
        if width * height > limits.max_pixels:
            return _too_many_pixels(found, limits)
        if ends_early(data, found.format):
            detail = "the container ends early"
            return replace(found, reason=Reason.TRUNCATED, detail=detail)
        if image.mode in _MODES_WITHOUT_RANGE:
            detail = f"pixels of mode {image.mode} have no known range"
            return replace(found, reason=Reason.UNSUPPORTED_FORMAT, detail=detail)
        orientation, num_frames = _orientation(image), _num_frames(image, found.format)
        try:
            gray = _gray_of_jpeg(data, image.mode) if found.format == "JPEG" else _gray(image)
        except Exception as error:  # noqa: BLE001 - As in inspect; here the size is known.
            return _failed(data, found, error)
    brightness, contrast, sharpness = statistics(gray)
    return replace(
        found,
        orientation=orientation,
        num_frames=num_frames,
        brightness=brightness,
        contrast=contrast,
        sharpness=sharpness,
        phash=phash(gray, orientation),
    )


def _too_many_pixels(found: Features, limits: Limits) -> Features:
    detail = f"{found.width} x {found.height} pixels, at most {limits.max_pixels} in all"
    return replace(found, reason=Reason.TOO_MANY_PIXELS, detail=detail)


def _webp_canvas(data: bytes) -> tuple[int, int] | None:
    """Width and height of an extended WebP (RFC 9649, section 2.7)."""
    if data[12:16] != b"VP8X":
        return None
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    return width, height


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # noqa: BLE001 - Damaged EXIF does not damage the picture.
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _num_frames(image: Image.Image, image_format: str) -> int:
    # A JPEG with more pictures behind it (MPO, as phones write) is one JPEG to every decoder here.
    return 1 if image_format == "JPEG" else int(getattr(image, "n_frames", 1))


def _gray_of_jpeg(data: bytes, mode: str) -> Image.Image:
    """The gray image of a JPEG, scaled while decoding so that its sides stay above the minimum.

    Strict: any warning of libjpeg is an error, so the picture is complete and undamaged.
    """
    colorspace = "CMYK" if mode == "CMYK" else "GRAY"
    side = MIN_GRAY_SIDE_PX
    pixels = simplejpeg.decode_jpeg(data, colorspace, min_height=side, min_width=side)
    if mode == "CMYK":  # Stored inverted, as Adobe does and Pillow assumes.
        return _at_scale(Image.fromarray(255 - pixels, "CMYK").convert("L"))
    return _at_scale(Image.fromarray(pixels[..., 0]))


def _gray(image: Image.Image) -> Image.Image:
    """The gray image of any other format, at the scale that a JPEG of that size gets."""
    if image.mode.startswith("I;16"):
        whole = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    else:
        image.load()
        image.info.pop("transparency", None)  # Alpha is dropped, here as in training.
        whole = image.convert("L")
    width, height = whole.size
    eighths = next((n for n in range(1, 8) if min(width, height) * n > 8 * MIN_GRAY_SIDE_PX - 8), 8)
    size = (-(-width * eighths // 8), -(-height * eighths // 8))  # As libjpeg rounds: up.
    return _at_scale(whole if size == whole.size else whole.resize(size, Image.Resampling.BOX))


def _at_scale(gray: Image.Image) -> Image.Image:
    factor = min(gray.size) // MIN_GRAY_SIDE_PX
    return gray.reduce(factor) if factor > 1 else gray


def statistics(gray: Image.Image) -> tuple[float, float, float]:
    """Mean, standard deviation and variance of the 4-neighbour Laplacian of a gray image."""
    pixels = np.asarray(gray)  # [H, W] uint8
    num, total, squares = pixels.size, *_sums(pixels)
    center = pixels[1:-1, 1:-1].astype(np.int16)
    laplacian = pixels[:-2, 1:-1] + pixels[2:, 1:-1].astype(np.int16) - 4 * center
    laplacian += pixels[1:-1, :-2]
    laplacian += pixels[1:-1, 2:]
    return (
        total / num,
        _variance(num, total, squares) ** 0.5,
        _variance(laplacian.size, *_sums(laplacian)),
    )


def _sums(values: npt.NDArray[Any]) -> tuple[int, int]:
    squares = np.square(values, dtype=np.int32)
    return int(values.sum(dtype=np.int64)), int(squares.sum(dtype=np.int64))


def _variance(num: int, total: int, squares: int) -> float:
    return (num * squares - total * total) / (num * num) if num else 0.0
