"""What DALI can decode goes through untouched; the rest becomes a PNG with the same pixels."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipelines.core.images.decoder import Decoder, Settings
from pipelines.core.images.transcode import Encoded, decodable
from tests import pictures

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")

FILES = pictures.files()
UNTOUCHED = {"jpeg", "png", "bmp", "ppm", "pgm", "pbm"}
ALSO_UNTOUCHED = {
    "webp",
    "webp lossless",
    "webp alpha",
    "webp lossy alpha",
    "webp with exif",
    "webp alpha with exif",
    "tiff",
    "tiff lzw",
    "tiff deflate",
    "tiff jpeg",
    "tiff gray",
    "tiff 16 bits",
    "tiff of several pages",
}


def decodable_of(data: bytes) -> Encoded:
    with Image.open(io.BytesIO(data)) as image:
        name = "JPEG" if image.format == "MPO" else str(image.format)
        return decodable(data, name, image.mode, getattr(image, "n_frames", 1))


def by_dali(data: bytes, height: int, width: int) -> Any:
    out = np.zeros((1, height, width, 3), np.uint8)
    assert Decoder(Settings(height, width, 3, "stretch", "cpu")).decode([data], out).all()
    return out[0]


@pytest.mark.parametrize("name", FILES)
def test_dali_sees_the_pixels_that_pillow_sees(name: str) -> None:
    seen = pictures.as_pillow_sees(FILES[name])
    decoded = by_dali(decodable_of(FILES[name]).data, *seen.shape[:2])
    is_lossy = "jpeg" in name or name.startswith("webp")  # Two builds of a decoder may round apart.
    np.testing.assert_allclose(decoded.astype(int), seen.astype(int), atol=2 if is_lossy else 0)


@pytest.mark.parametrize("name", FILES)
def test_only_what_dali_cannot_decode_is_turned_into_png(name: str) -> None:
    encoded = decodable_of(FILES[name])
    may_pass = name.partition(" ")[0] in UNTOUCHED or name in ALSO_UNTOUCHED
    assert encoded.is_transcoded != may_pass
    if may_pass:
        assert encoded.data is FILES[name]
    else:
        assert encoded.extension == "png"
        assert encoded.data.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "name", [name for name in FILES if decodable_of(FILES[name]).is_transcoded]
)
def test_the_png_keeps_pixels_alpha_and_palette(name: str) -> None:
    with (
        Image.open(io.BytesIO(FILES[name])) as source,
        Image.open(io.BytesIO(decodable_of(FILES[name]).data)) as png,
    ):
        if source.mode in ("CMYK", "YCbCr"):  # PNG has neither.
            assert png.mode == "RGB"
        else:
            assert png.mode == source.mode
            np.testing.assert_array_equal(
                np.asarray(png.convert("RGBA")), np.asarray(source.convert("RGBA"))
            )


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["AVIF", "WEBP", "TIFF"])
def test_the_png_keeps_the_orientation(name: str, orientation: int) -> None:
    image = pictures.picture().convert("L") if name == "TIFF" else pictures.picture()
    image = image.convert("LA") if name == "TIFF" else image
    options = {"lossless": True} if name == "WEBP" else {}
    data = pictures.encode(image, name, exif=pictures.exif(orientation), **options)
    encoded = decodable_of(data)
    seen = pictures.as_pillow_sees(data)
    assert encoded.is_transcoded
    np.testing.assert_array_equal(by_dali(encoded.data, *seen.shape[:2]), seen)


@pytest.mark.parametrize("name", ["avif with exif", "webp lossless with exif"])
def test_the_png_keeps_exif(name: str) -> None:
    with Image.open(io.BytesIO(decodable_of(FILES[name]).data)) as png:
        assert png.getexif()[0x010F] == "Headrace"


def test_the_png_keeps_the_icc_profile() -> None:
    profile = b"\0" * 128
    data = pictures.encode(pictures.picture(), "AVIF", icc_profile=profile)
    with Image.open(io.BytesIO(decodable_of(data).data)) as png:
        assert png.info["icc_profile"] == profile


def test_sixteen_bits_of_either_byte_order_pass() -> None:
    deep = Image.frombytes("I;16B", (4, 1), np.arange(4, dtype=">u2").tobytes())
    data = pictures.encode(deep, "TIFF")
    assert not decodable_of(data).is_transcoded
    np.testing.assert_array_equal(by_dali(data, 1, 4), pictures.as_pillow_sees(data))


def test_exif_that_cannot_be_read_does_not_lose_the_picture() -> None:
    data = pictures.encode(pictures.picture(), "AVIF", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" * 3)
    seen = pictures.as_pillow_sees(data)
    np.testing.assert_array_equal(by_dali(decodable_of(data).data, *seen.shape[:2]), seen)
