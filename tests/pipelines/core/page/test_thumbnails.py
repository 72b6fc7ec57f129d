import base64
import io
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from pipelines.core.page import thumbnails
from pipelines.core.page.thumbnails import Place, of_bytes, place_of, thumbnail
from tests import messy, pictures

PHOTO = messy.jpeg(messy.stripes("cat", 1, 600, 300))


def shown(data: bytes, side_px: int = 64) -> Image.Image:
    """The picture of a file, as a browser would open it."""
    url = of_bytes(data, side_px)
    assert url is not None
    head, _, body = url.partition(";base64,")
    image = Image.open(io.BytesIO(base64.b64decode(body)))
    assert head == f"data:image/{image.format}".lower()
    return image


@pytest.mark.parametrize("name", pictures.files())
def test_every_format_and_mode_that_the_line_meets_has_a_picture(name: str) -> None:
    image = shown(pictures.files()[name])
    assert image.mode in ("L", "RGB")
    assert {image.width, image.height} <= {pictures.WIDTH, pictures.HEIGHT}


def test_large_images_shrink_and_small_ones_keep_their_size() -> None:
    assert shown(PHOTO).size == (64, 32)
    assert shown(messy.encode(messy.stripes("cat", 1, 9, 5), "PNG")).size == (9, 5)


def test_pictures_stand_upright() -> None:
    assert shown(messy.rotated(messy.stripes("cat", 1, 600, 300))).size == (32, 64)


def test_transparent_is_white() -> None:
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    assert shown(messy.encode(clear, "PNG")).getpixel((3, 3)) == (255, 255, 255)


def test_sixteen_bits_are_stretched_over_their_range() -> None:
    ramp = Image.new("I;16", (2, 1))
    ramp.putpixel((0, 0), 1000)
    ramp.putpixel((1, 0), 1200)
    image = shown(messy.encode(ramp, "PNG"))
    assert [image.getpixel((x, 0)) for x in (0, 1)] == [0, 255]


def test_what_ends_early_is_shown_as_far_as_it_goes() -> None:
    half = shown(PHOTO[: len(PHOTO) // 2])
    assert half.size == (64, 32)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


@pytest.mark.parametrize(
    "data", [b"", b"garbage" * 90, messy.png_header(60_000, 60_000), PHOTO[:20]]
)
def test_what_cannot_be_shown_has_no_picture(data: bytes) -> None:
    assert of_bytes(data, 64) is None


def test_a_picture_is_small_whatever_it_shows() -> None:
    url = of_bytes(messy.encode(Image.effect_noise((900, 900), 90), "PNG"), 112)
    assert url is not None
    assert len(url) < 16_000


def test_equal_files_have_equal_pictures() -> None:
    assert of_bytes(PHOTO, 64) == of_bytes(PHOTO, 64)


def test_a_path_for_people_leads_back_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "2026").mkdir()
    (tmp_path / "2026" / "cats.zip").write_bytes(b"x")
    (tmp_path / "dog.jpg").write_bytes(PHOTO)
    assert place_of(tmp_path, "2026/cats.zip/cat/1.jpg") == Place("2026/cats.zip", "cat/1.jpg")
    assert place_of(tmp_path, "dog.jpg") == Place("dog.jpg", "")
    for path in ("labels.csv:7", "2026/none.jpg", "", "x" * 5000, "a\0b"):
        assert place_of(tmp_path, path) is None


def test_a_link_that_leaves_raw_is_not_followed(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (tmp_path / "secret.png").write_bytes(PHOTO)
    (raw / "cat.png").symlink_to(tmp_path / "secret.png")
    (raw / "inside.png").symlink_to(raw / "dog.jpg")
    (raw / "dog.jpg").write_bytes(PHOTO)
    assert place_of(raw, "cat.png") is None
    assert place_of(raw, "../secret.png") is None
    assert place_of(raw, "inside.png") == Place("inside.png", "")


def test_a_file_that_is_gone_or_too_large_has_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jpg").write_bytes(PHOTO)
    assert thumbnail(tmp_path, Place("b.jpg", ""), 64) is None
    assert thumbnail(tmp_path, Place("a.jpg", ""), 64) is not None
    monkeypatch.setattr(thumbnails, "MAX_FILE_BYTES", 100)
    assert thumbnail(tmp_path, Place("a.jpg", ""), 64) is None
