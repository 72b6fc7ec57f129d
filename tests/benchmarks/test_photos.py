"""Photos to measure with are the same each time, and of the size that they are said to have."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import photos


@pytest.fixture
def wallpapers(tmp_path: Path) -> Path:
    """Two large pictures, one of them in two sizes as Plasma has it, and a small one."""
    root = tmp_path / "wallpapers"
    for name, size in {
        "a.jpg": (1920, 1200),
        "Hill/contents/images/1920x1080.jpg": (1920, 1080),
        "Hill/contents/images/2560x1440.jpg": (2560, 1440),
        "small.jpg": (640, 480),
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        ramp = np.linspace(0, 255, size[0], dtype=np.uint8)
        Image.fromarray(np.tile(ramp, (size[1], 1))).save(path)
    return root


def test_each_large_picture_counts_once(wallpapers: Path) -> None:
    names = [path.name for path in photos.wallpapers([wallpapers])]
    assert sorted(names) == ["2560x1440.jpg", "a.jpg"]


def test_without_wallpapers_it_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="apt-get install"):
        photos.wallpapers([tmp_path])


def test_crops_are_the_same_each_time(wallpapers: Path, tmp_path: Path) -> None:
    one, two = (
        photos.write_archives(tmp_path / name, 23, num_archives=2, roots=[wallpapers])
        for name in ("one", "two")
    )
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    names: list[str] = []
    for path in one:
        with zipfile.ZipFile(path) as archive:
            names += archive.namelist()
            for name in archive.namelist():
                with Image.open(io.BytesIO(archive.read(name))) as image:
                    assert abs(image.width - photos.WIDTH_PX) <= photos.JITTER_PX
                    assert abs(image.height - photos.HEIGHT_PX) <= photos.JITTER_PX
    assert names == [f"class-{number % 10}/{number:06d}.jpg" for number in range(23)]
