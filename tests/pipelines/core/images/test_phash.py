import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from pipelines.core.images.phash import NUM_BITS, phash
from tests.messy import scene


def distance(one: Image.Image, other: Image.Image) -> int:
    return (phash(one) ^ phash(other)).bit_count()


def compressed(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=40)
    return Image.open(file)


@pytest.mark.parametrize("seed", range(5))
def test_what_looks_alike_differs_in_few_bits(seed: int) -> None:
    whole = scene(seed)
    assert distance(whole, whole.resize((90, 120), Image.Resampling.BICUBIC)) <= 4
    assert distance(whole, compressed(whole)) <= 4
    assert distance(whole, whole.point(lambda level: level * 0.7 + 20)) <= 4


def test_what_looks_different_differs_in_about_half_of_the_bits() -> None:
    hashes = [phash(scene(seed)) for seed in range(40)]
    distances = [
        (one ^ other).bit_count() for at, one in enumerate(hashes) for other in hashes[:at]
    ]
    assert min(distances) > 10
    assert np.mean(distances) == pytest.approx(NUM_BITS / 2, abs=2)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_hash_is_of_the_image_as_it_is_shown(orientation: int) -> None:
    stored = scene(1)
    tags = stored.getexif()
    tags[0x0112] = orientation
    file = io.BytesIO()
    stored.save(file, "PNG", exif=tags)
    shown = ImageOps.exif_transpose(Image.open(file))
    assert (phash(stored, orientation) ^ phash(shown)).bit_count() <= 2


def test_bits_say_which_frequencies_are_above_their_median() -> None:
    pixels = np.asarray(scene(2).resize((32, 32)), np.float64)
    at = np.arange(32)
    waves = [np.cos(np.pi * frequency * (2 * at + 1) / 64) for frequency in range(8)]
    found = [down @ pixels @ across for down in waves for across in waves]
    bits = "".join(str(int(value > np.median(found))) for value in found)
    assert f"{phash(Image.fromarray(pixels.astype(np.uint8))):064b}" == bits


@pytest.mark.parametrize("size", [(1, 1), (2, 50), (5000, 1)])
def test_any_size_has_a_hash(size: tuple[int, int]) -> None:
    assert 0 <= phash(Image.new("L", size, 7)) < 1 << NUM_BITS
