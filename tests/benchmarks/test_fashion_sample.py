"""Cutting the bundled sample: from a small source made here, and from Debian's where it is."""

import csv
import gzip
import hashlib
import io
import platform
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from benchmarks import fashion_sample


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()))


def noise(seed: int, num_images: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (num_images, 28, 28), np.uint8)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for split, seed in (("train", 1), ("t10k", 2)):
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", noise(seed, 12))
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", np.arange(12, dtype=np.uint8) % 10)
    return tmp_path


def test_two_cuts_have_the_same_bytes(source: Path) -> None:
    targets = [source / "one.zip", source / "two.zip"]
    for target in targets:
        fashion_sample.cut(source, target, {"train": 12, "test": 6}, b"licence")
    assert targets[0].read_bytes() == targets[1].read_bytes()


def test_pixels_and_labels_of_the_source_are_kept(source: Path) -> None:
    target = source / "sample.zip"
    fashion_sample.cut(source, target, {"train": 12, "test": 6}, b"licence")
    with zipfile.ZipFile(target) as archive:
        table = list(csv.DictReader(io.StringIO(archive.read("labels.csv").decode())))
        pixels = [np.asarray(Image.open(io.BytesIO(archive.read(row["path"])))) for row in table]
    assert [row["split"] for row in table] == ["train"] * 12 + ["test"] * 6
    assert [row["label"] for row in table[:3]] == ["T-shirt/top", "Trouser", "Pullover"]
    assert np.array_equal(np.stack(pixels[:12]), noise(1, 12))
    assert np.array_equal(np.stack(pixels[12:]), noise(2, 12)[:6])


def test_zip_carries_the_licence_as_its_comment(source: Path) -> None:
    fashion_sample.cut(source, source / "sample.zip", {"train": 1}, b"may be passed on")
    with zipfile.ZipFile(source / "sample.zip") as archive:
        assert archive.comment == b"may be passed on"


def test_source_with_too_few_images_is_refused(source: Path) -> None:
    with pytest.raises(ValueError, match="fewer than 13 images of train"):
        fashion_sample.cut(source, source / "sample.zip", {"train": 13}, b"")


@pytest.mark.parametrize(
    "damage", [slice(0, -1), slice(1, None), slice(0, 6), slice(0, 3), slice(0)]
)
def test_damaged_idx_file_is_refused(tmp_path: Path, damage: slice) -> None:
    whole = bytes([0, 0, 8, 1, 0, 0, 0, 5]) + b"12345"
    (tmp_path / "damaged.gz").write_bytes(gzip.compress(whole[damage]))
    with pytest.raises(ValueError, match="not a whole IDX file"):
        fashion_sample.read_idx(tmp_path / "damaged.gz")


@pytest.mark.skipif(
    not fashion_sample.SOURCE.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)
@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="Pillow's zlib-ng may compress otherwise elsewhere"
)
def test_cutting_anew_gives_the_bundled_zip(tmp_path: Path) -> None:
    licence = fashion_sample.TARGET.with_name("LICENSE").read_bytes()
    target = tmp_path / "sample.zip"
    fashion_sample.cut(fashion_sample.SOURCE, target, fashion_sample.NUM_IMAGES, licence)
    digests = [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (target, fashion_sample.TARGET)
    ]
    assert digests[0] == digests[1]
