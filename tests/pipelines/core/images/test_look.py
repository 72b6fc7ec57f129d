import hashlib
import io
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from pipelines.core.images import look as seen
from pipelines.core.images.features import Features, Limits
from pipelines.core.reasons import Reason
from tests import messy, pictures

LIMITS = Limits(max_bytes=1 << 24, max_pixels=1 << 24)
FILES = pictures.files()
LARGE = messy.stripes("cat", 1, 640, 480)


def look(data: bytes, name: str = "a.jpg", limits: Limits = LIMITS) -> Features:
    return seen.inspect(data, name, limits)


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
@pytest.mark.parametrize("name", FILES)
def test_every_format_and_mode_is_looked_at(name: str) -> None:
    seen = look(FILES[name])
    assert (seen.reason, seen.detail) == ("", "")
    assert (seen.width, seen.height) == (pictures.WIDTH, pictures.HEIGHT)
    assert seen.num_bytes == len(FILES[name])
    assert seen.sha256 == hashlib.sha256(FILES[name]).hexdigest()
    with Image.open(io.BytesIO(FILES[name])) as image:
        assert seen.mode == image.mode
        assert seen.format == (image.format or "").replace("MPO", "JPEG")
    gray = pictures.as_pillow_sees(FILES[name], channels=1)
    assert seen.brightness == pytest.approx(gray.mean(), abs=3)
    assert seen.contrast == pytest.approx(gray.std(), abs=3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("png", 1),
        ("gif animated", 2),
        ("webp animated", 2),
        ("png animated", 2),
        ("tiff of several pages", 2),
        ("jpeg of several pictures", 1),
    ],
)
def test_frames_are_counted(name: str, expected: int) -> None:
    assert look(FILES[name]).num_frames == expected


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_told_and_the_size_is_the_stored_one(orientation: int) -> None:
    seen = look(messy.rotated(LARGE, orientation))
    assert (seen.orientation, seen.width, seen.height) == (orientation, 640, 480)


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_impossible_orientation_counts_as_upright(orientation: int) -> None:
    assert look(messy.rotated(LARGE, orientation)).orientation == 1


def test_damaged_exif_does_not_reject_the_picture() -> None:
    damaged = messy.rotated(LARGE).replace(b"Exif\0\0MM", b"Exif\0\0XX")
    assert (look(damaged).reason, look(damaged).orientation) == ("", 1)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
def test_file_that_ends_early_is_truncated(name: str, cut: float) -> None:
    data = FILES[name]
    if "several" in name and cut > 0.4:
        assert look(data[: int(len(data) * cut)]).reason == ""  # The first picture is whole.
        return
    assert look(data[: int(len(data) * cut)]).reason == Reason.TRUNCATED


@pytest.mark.parametrize("num_missing", [1, 2, 3, 10, 100])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_that_lacks_its_last_bytes_is_truncated(
    num_missing: int, *, progressive: bool
) -> None:
    data = messy.jpeg(LARGE, progressive=progressive)
    assert look(data[:-num_missing]).reason == Reason.TRUNCATED


@pytest.mark.parametrize(
    ("data", "name", "reason"),
    [
        (b"", "a.jpg", "unreadable"),
        (b"", "notes.txt", "unreadable"),
        (b"\x01garbage", "a.JPG", "unreadable"),
        (b"\x01garbage", "a.webp", "unreadable"),
        (b"\x01garbage", "a.txt", "unsupported_format"),
        (b"\x01garbage", "a", "unsupported_format"),
        (b"%PDF-1.7 ...", "a.jpg", "unsupported_format"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a.heic", "unsupported_format"),
        (b"\xff\xd8\xff\xd9", "a.jpg", "unreadable"),
        (b"GIF89a", "a.gif", "truncated"),
    ],
)
def test_what_is_no_image_gets_its_reason(data: bytes, name: str, reason: str) -> None:
    seen = look(data, name)
    assert seen.reason == reason
    assert seen.detail


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_without_a_known_range_are_not_guessed_at(mode: str) -> None:
    buffer = io.BytesIO()
    Image.new(mode, (20, 20)).save(buffer, "TIFF")
    assert look(buffer.getvalue()).reason == Reason.UNSUPPORTED_FORMAT


def test_content_counts_and_not_the_name() -> None:
    assert look(FILES["png"], "a.jpg") == look(FILES["png"], "a.png") == look(FILES["png"], "a")


def test_huge_image_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", None)
    seen = look(messy.png_header(60_000, 60_000), "a.png")
    assert seen.reason == Reason.TOO_MANY_PIXELS
    assert (seen.width, seen.height) == (60_000, 60_000)
    assert seen.detail == "60000 x 60000 pixels, at most 16777216 in all"


@pytest.mark.parametrize("image_format", ["JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "AVIF"])
def test_pixel_limit_holds_for_every_format(image_format: str) -> None:
    data = pictures.encode(pictures.picture(), image_format)
    limit = pictures.HEIGHT * pictures.WIDTH
    assert look(data, limits=Limits(1 << 20, limit)).reason == ""
    assert look(data, limits=Limits(1 << 20, limit - 1)).reason == Reason.TOO_MANY_PIXELS


def test_huge_webp_canvas_is_refused_before_libwebp_makes_room_for_it() -> None:
    data = bytearray(FILES["webp animated"])
    data[24:30] = b"\xff\xff\0\xff\xff\0"
    seen = look(bytes(data))
    assert (seen.reason, seen.width, seen.height) == ("too_many_pixels", 65536, 65536)


def test_file_beyond_the_byte_limit_is_not_decoded() -> None:
    data = FILES["png"]
    assert look(data, limits=Limits(len(data), 1 << 20)).reason == ""
    assert look(data, limits=Limits(len(data) - 1, 1 << 20)).reason == Reason.TOO_MANY_BYTES


def test_statistics_are_those_of_their_definitions() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7), np.uint8)
    brightness, contrast, sharpness = seen.statistics(Image.fromarray(pixels))
    p = pixels.astype(float)
    laplacian = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * p[1:-1, 1:-1]
    assert brightness == pytest.approx(statistics.fmean(p.flat))
    assert contrast == pytest.approx(statistics.pstdev(p.flat))
    assert sharpness == pytest.approx(statistics.pvariance(laplacian.flat))


@pytest.mark.parametrize("size", [(1, 1), (2, 50), (50, 2)])
def test_image_too_thin_for_a_laplacian_has_none(size: tuple[int, int]) -> None:
    seen = look(pictures.encode(Image.new("L", size, 7), "PNG"))
    assert (seen.reason, seen.brightness, seen.sharpness) == ("", 7, 0)


def test_blank_image_has_no_contrast() -> None:
    seen = look(pictures.encode(Image.new("RGB", (300, 200), "white"), "JPEG"))
    assert (seen.brightness, seen.contrast, seen.sharpness) == (255, 0, 0)


@pytest.mark.parametrize("size", [(640, 480), (500, 375), (1500, 1200), (2600, 2100), (130, 129)])
def test_jpeg_and_png_of_one_picture_are_measured_at_one_scale(size: tuple[int, int]) -> None:
    picture = LARGE.resize(size, Image.Resampling.BICUBIC)
    jpeg = look(pictures.encode(picture, "JPEG", quality=98))
    png = look(pictures.encode(picture, "PNG", compress_level=1))
    assert jpeg.brightness == pytest.approx(png.brightness, rel=0.02)
    assert jpeg.contrast == pytest.approx(png.contrast, rel=0.05)
    assert jpeg.sharpness == pytest.approx(png.sharpness, rel=0.35)


def test_blurred_picture_is_less_sharp() -> None:
    blurred = LARGE.filter(ImageFilter.GaussianBlur(5))
    assert look(messy.jpeg(blurred)).sharpness < 0.5 * look(messy.jpeg(LARGE)).sharpness


def test_threads_see_what_one_thread_sees() -> None:
    names = sorted(FILES) * 3
    alone = [look(FILES[name]) for name in names]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda name: look(FILES[name]), names)) == alone


@settings(max_examples=150)
@given(st.data())
def test_no_bytes_raise_and_all_that_fail_have_a_reason(data: st.DataObject) -> None:
    whole = bytearray(FILES[data.draw(st.sampled_from(sorted(FILES)))])
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, min(len(whole), 400) - 1))] = data.draw(st.integers(0, 255))
    seen = look(bytes(whole))
    assert seen == look(bytes(whole))
    assert seen.reason in ("", *Reason)
    assert bool(seen.reason) == bool(seen.detail)
    assert "0x" not in seen.detail
    assert all(value >= 0 for value in astuple(seen)[-3:])
