"""Image files for tests, in every format and mode that the line meets, made from one picture.

The picture is smooth with hard edges and has no symmetry, so a wrong orientation, channel order or
scale shows.
"""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

HEIGHT, WIDTH = 40, 48


def picture(height: int = HEIGHT, width: int = WIDTH) -> Image.Image:
    """The picture in RGB."""
    y, x = np.mgrid[0:height, 0:width] / [[[height]], [[width]]]
    pixels = np.stack([255 * x, 255 * y, 127 * (x + y)], axis=-1).astype(np.uint8)
    pixels[height // 8 : height // 4, width // 8 : width // 2] = (255, 0, 0)
    pixels[height // 2 : 3 * height // 4, 5 * width // 8 : 7 * width // 8] = (0, 200, 30)
    return Image.fromarray(pixels)


def alpha() -> Image.Image:
    """An alpha channel that is opaque, translucent and transparent by places."""
    return Image.fromarray(np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1)))


def deep() -> Image.Image:
    """The picture in gray of 16 bits, with values that no 8-bit gray has."""
    gray = np.asarray(picture().convert("L")).astype(np.uint16) * 257
    gray[0, :4] = (128, 129, 300, 65535)
    return Image.fromarray(gray)


def encode(image: Image.Image, image_format: str, **options: Any) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    for each in (image, *options.get("append_images", ())):
        each.encoderconfig = ()  # Pillow would use the options of an earlier save.
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def files() -> dict[str, bytes]:
    """One file for each format and mode, by a name for people."""
    rgb = picture()
    gray, bilevel, palette = rgb.convert("L"), rgb.convert("1"), rgb.quantize(32)
    rgba, gray_alpha = rgb.copy(), Image.merge("LA", (gray, alpha()))
    rgba.putalpha(alpha())
    shades = bytes(range(0, 256, 8))
    other = rgb.rotate(90)
    return {
        "jpeg": encode(rgb, "JPEG", quality=95),
        "jpeg subsampled": encode(rgb, "JPEG", quality=90, subsampling=2),
        "jpeg progressive": encode(rgb, "JPEG", quality=95, progressive=True),
        "jpeg gray": encode(gray, "JPEG", quality=95),
        "jpeg cmyk": encode(rgb.convert("CMYK"), "JPEG", quality=95),
        "jpeg of several pictures": encode(rgb, "MPO", save_all=True, append_images=[other]),
        "png": encode(rgb, "PNG"),
        "png gray": encode(gray, "PNG"),
        "png 1 bit": encode(bilevel, "PNG"),
        "png 16 bits": encode(deep(), "PNG"),
        "png palette": encode(palette, "PNG"),
        "png palette of 3 bits": encode(rgb.quantize(7), "PNG", bits=4),
        "png palette with a transparent colour": encode(palette, "PNG", transparency=3),
        "png palette with alpha": encode(palette, "PNG", transparency=shades),
        "png alpha": encode(rgba, "PNG"),
        "png gray alpha": encode(gray_alpha, "PNG"),
        "png with a transparent colour": encode(rgb, "PNG", transparency=(255, 0, 0)),
        "png animated": encode(rgb, "PNG", save_all=True, append_images=[other]),
        "webp": encode(rgb, "WEBP", quality=90),
        "webp lossless": encode(rgb, "WEBP", lossless=True),
        "webp alpha": encode(rgba, "WEBP", lossless=True, exact=True),
        "webp lossy alpha": encode(rgba, "WEBP", quality=90, exact=True),
        "webp lossless with exif": encode(rgb, "WEBP", lossless=True, exif=exif(6)),
        "webp with exif": encode(rgb, "WEBP", quality=90, exif=exif(6)),
        "webp alpha with exif": encode(rgba, "WEBP", quality=90, exif=exif(6), exact=True),
        "webp animated": encode(rgb, "WEBP", lossless=True, save_all=True, append_images=[other]),
        "bmp": encode(rgb, "BMP"),
        "bmp gray": encode(gray, "BMP"),
        "bmp 1 bit": encode(bilevel, "BMP"),
        "bmp palette": encode(palette, "BMP"),
        "bmp alpha": encode(rgba, "BMP"),
        "tiff": encode(rgb, "TIFF"),
        "tiff lzw": encode(rgb, "TIFF", compression="tiff_lzw"),
        "tiff deflate": encode(rgb, "TIFF", compression="tiff_adobe_deflate"),
        "tiff jpeg": encode(rgb, "TIFF", compression="jpeg"),
        "tiff gray": encode(gray, "TIFF"),
        "tiff 1 bit": encode(bilevel, "TIFF"),
        "tiff fax": encode(bilevel, "TIFF", compression="group4"),
        "tiff 16 bits": encode(deep(), "TIFF"),
        "tiff palette": encode(palette, "TIFF"),
        "tiff alpha": encode(rgba, "TIFF"),
        "tiff gray alpha": encode(gray_alpha, "TIFF"),
        "tiff cmyk": encode(rgb.convert("CMYK"), "TIFF"),
        "tiff ycbcr": encode(rgb.convert("YCbCr"), "TIFF"),
        "tiff of several pages": encode(rgb, "TIFF", save_all=True, append_images=[other]),
        "ppm": encode(rgb, "PPM"),
        "pgm": encode(gray, "PPM"),
        "pbm": encode(bilevel, "PPM"),
        "gif": encode(palette, "GIF"),
        "gif transparent": encode(palette, "GIF", transparency=3),
        "gif animated": encode(palette, "GIF", save_all=True, append_images=[other.quantize(32)]),
        "avif": encode(rgb, "AVIF", quality=95),
        "avif alpha": encode(rgba, "AVIF", quality=95),
        "avif with exif": encode(rgb, "AVIF", quality=95, exif=exif(6)),
    }


def exif(orientation: int) -> bytes:
    """EXIF with an orientation and the maker of the camera."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    tags[0x010F] = "Headrace"
    return tags.tobytes()


def as_pillow_sees(data: bytes, channels: int = 3) -> npt.NDArray[np.uint8]:
    """[H, W, C] uint8: upright, first frame, 8 bits, alpha dropped."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I;16"):
            scaled = np.round(np.asarray(upright).astype(np.float64) / 257).astype(np.uint8)
            upright = Image.fromarray(scaled)
        pixels = np.asarray(upright.convert("RGB" if channels == 3 else "L"))
    return pixels.reshape(*pixels.shape[:2], channels)
