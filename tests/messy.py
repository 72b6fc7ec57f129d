"""A messy dataset for tests: good images of every format and mode, and what may be wrong with one.

Classes are told apart by the direction of stripes, so that a small model learns them. Everything is
a function of the arguments. `PARAMS` are the parameters of `clean` under which the expected reasons
hold.
"""

import io
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PARAMS: Mapping[str, int | float | str | None] = {
    "target_bucket_mib": 1.0,
    "target_bucket_samples": 16,
    "max_file_mib": 1.0,
    "max_megapixels": 4.0,
    "min_side_px": 16,
    "max_aspect_ratio": 4.0,
    "min_contrast": 2.0,
    "max_blur_z": None,
    "max_darkness_z": None,
    "max_low_information_z": None,
    "max_size_z": None,
    "max_aspect_z": None,
    "near_duplicates": "ignore",
    "near_duplicate_radius_bits": 4,
    "val_fraction": 0.15,
    "test_fraction": 0.15,
    "max_rejected_fraction": 0.6,
}
CLASSES = ("cat", "dog")


def stripes(label: str, seed: int, width: int = 96, height: int = 72) -> Image.Image:
    """An RGB picture of a class: upright stripes for cats, level ones for dogs, under noise."""
    rng = np.random.default_rng([CLASSES.index(label), seed])
    y, x = np.mgrid[0:height, 0:width]
    wave = np.sin((x if label == "cat" else y) / rng.uniform(2, 4) + rng.uniform(0, 6))
    colour = rng.uniform(40, 110, 3)
    pixels = 128 + wave[..., None] * colour + rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def scene(seed: int, width: int = 200, height: int = 150) -> Image.Image:
    """A gray picture with structure at several scales, as photos have and `stripes` have not."""
    rng = np.random.default_rng(seed)
    layers = [
        Image.fromarray(rng.integers(0, 256, (side, side), np.uint8)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        for side in (3, 6, 12)
    ]
    pixels = np.average([np.asarray(layer) for layer in layers], axis=0, weights=(4, 2, 1))
    return Image.fromarray(pixels.astype(np.uint8))


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def jpeg(image: Image.Image, **options: Any) -> bytes:
    """A JPEG file of good quality."""
    return encode(image, "JPEG", quality=90, **options)


def rotated(image: Image.Image, orientation: int = 6) -> bytes:
    """A JPEG that EXIF says to turn."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return jpeg(image, exif=tags.tobytes())


def sixteen_bit(image: Image.Image) -> Image.Image:
    """The picture in gray of 16 bits."""
    return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)


def translucent(image: Image.Image) -> Image.Image:
    """The picture with an alpha channel."""
    whole = image.copy()
    whole.putalpha(200)
    return whole


GOOD: Mapping[str, Callable[[Image.Image], bytes]] = {
    "colour.jpg": jpeg,
    "progressive.jpeg": lambda image: jpeg(image, progressive=True),
    "gray.jpg": lambda image: jpeg(image.convert("L")),
    "cmyk.jpg": lambda image: jpeg(image.convert("CMYK")),
    "turned by exif.jpg": rotated,
    "LOUD.JPG": jpeg,
    "colour.png": lambda image: encode(image, "PNG"),
    "alpha.png": lambda image: encode(translucent(image), "PNG"),
    "palette.png": lambda image: encode(image.quantize(64), "PNG"),
    "one_bit.png": lambda image: encode(image.convert("1"), "PNG"),
    "sixteen.bit.png": lambda image: encode(sixteen_bit(image), "PNG"),
    "colour.webp": lambda image: encode(image, "WEBP", quality=90),
    "lossless.webp": lambda image: encode(image, "WEBP", lossless=True),
    "frames.gif": lambda image: encode(image.quantize(64), "GIF"),
    "modern.avif": lambda image: encode(image, "AVIF", quality=90),
    "scan.tiff": lambda image: encode(image, "TIFF"),
    "bitmap.bmp": lambda image: encode(image, "BMP"),
    "wrong_ending.jpg": lambda image: encode(image, "PNG"),
    "no_ending": jpeg,
    ".hidden.jpg": jpeg,
    "d\u00e9j\u00e0 vu \u732b.jpg": jpeg,
}
"""Files that are kept: the end of the name, and how the picture is written."""


def png_header(width: int, height: int) -> bytes:
    """A PNG that announces a size and holds next to nothing."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(1000))),
        (b"IEND", b""),
    ]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def bad_files(label: str, seed: int) -> dict[str, tuple[bytes, str]]:
    """Contents that are rejected whatever else there is, with the reason."""
    picture = stripes(label, seed)
    whole = jpeg(picture)
    garbage = np.random.default_rng(seed).integers(0, 256, 400, np.uint8).tobytes()
    noise = np.random.default_rng(seed).integers(0, 256, (700, 700, 3), np.uint8)
    return {
        "zero_byte.jpg": (b"", "unreadable"),
        "garbage.png": (b"\x01" + garbage, "unreadable"),
        "half.jpg": (whole[: len(whole) // 2], "truncated"),
        "two_bytes_off.jpg": (whole[:-2], "truncated"),
        "half.png": (encode(picture, "PNG")[:-2000], "truncated"),
        "half.webp": (encode(picture, "WEBP")[:-200], "truncated"),
        "notes.txt": (b"These are the cats and dogs of our street.\n", "unsupported_format"),
        "page.jpg": (b"<html>404 not found</html>", "unsupported_format"),
        "huge.png": (png_header(60_000, 60_000), "too_many_pixels"),
        "heavy.bmp": (encode(Image.fromarray(noise), "BMP"), "too_many_bytes"),
        "tiny.png": (encode(picture.resize((8, 9)), "PNG"), "too_small"),
        "long.png": (encode(picture.resize((150, 20)), "PNG"), "odd_aspect"),
        "blank.png": (encode(Image.new("RGB", (40 + seed % 50, 40), "white"), "PNG"), "blank"),
    }


def messy_files(seed: int = 0, num_rounds: int = 1) -> dict[str, tuple[bytes, str | None]]:
    """Path, content, and the reason for which `clean` drops it, or None where it keeps it.

    Args:
        seed: other seeds give other pictures.
        num_rounds: how often each good kind occurs a class, each time another picture and size.
    """
    files: dict[str, tuple[bytes, str | None]] = {}
    for label in CLASSES:
        for turn in range(num_rounds):
            for number, (ending, write) in enumerate(GOOD.items()):
                own = 1000 * seed + 100 * turn + number
                size = 64 + 7 * (own % 11), 48 + 5 * (own % 7)
                name = ending if turn == 0 else f"{turn}_{ending}"
                files[f"{label}/{name}"] = (write(stripes(label, own, *size)), None)
        for name, (data, reason) in bad_files(label, 1000 * seed + 999).items():
            files[f"{label}/{name}"] = (data, reason)
        twin = jpeg(stripes(label, 1000 * seed + 998))
        files[f"{label}/twin a.jpg"] = (twin, None)
        files[f"{label}/twin b.jpg"] = (twin, "exact_duplicate")
        files[f"{label}/both.jpg"] = (jpeg(stripes("cat", 1000 * seed + 997)), "conflicting_labels")
    files["astray.jpg"] = (jpeg(stripes("dog", 1000 * seed + 996)), "no_label")
    return files


def write_messy(folder: Path, seed: int = 0, num_rounds: int = 1) -> dict[str, str | None]:
    """Write `messy_files` into `folder` by the layout `folders`; path -> reason or None."""
    files = messy_files(seed, num_rounds)
    for path, (data, _) in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return {path: reason for path, (_, reason) in files.items()}
