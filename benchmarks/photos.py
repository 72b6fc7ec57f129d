"""Real photos to measure with: crops of about 500 x 375 pixels from Debian's wallpapers.

`apt-get install gnome-backgrounds mate-backgrounds plasma-workspace-wallpapers` puts some hundred
large photos below /usr/share. Each is cut at random places and scales into JPEGs of about 50 KB,
which go into zip archives, by class folders. The result is a function of the wallpapers, the
arguments and the Pillow in requirements.lock. Costs about 4 ms a crop and core.
"""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

ROOTS = (Path("/usr/share/backgrounds"), Path("/usr/share/wallpapers"))
NUM_CLASSES = 10
WIDTH_PX, HEIGHT_PX, JITTER_PX = 500, 375, 20
_MIN_WALLPAPER_PX = 1920
_CROPS_OF_ONE = 50
_QUALITY = 95


def wallpapers(roots: Sequence[Path] = ROOTS) -> list[Path]:
    """The wallpapers that are large enough, one of each picture.

    Raises:
        SystemExit: there are none; says what to install.
    """
    found: dict[str, Path] = {}
    for path in sorted(path for root in roots for path in root.rglob("*.jp*g")):
        with Image.open(path) as image:
            # Plasma keeps one picture in many sizes: <name>/contents/images/1920x1080.jpg
            name = path.parents[2].name if path.parent.name.startswith("images") else path.stem
            if image.width >= _MIN_WALLPAPER_PX and not path.is_symlink():
                found[name] = path
    if not found:
        raise SystemExit(__doc__)
    return list(found.values())


def write_archives(
    folder: Path,
    num_images: int,
    *,
    num_archives: int = 10,
    seed: int = 1,
    roots: Sequence[Path] = ROOTS,
) -> list[Path]:
    """Write `part-00.zip`, `part-01.zip`, ...: members `<class>/<number>.jpg`, stored."""
    sources = wallpapers(roots)
    folder.mkdir(parents=True, exist_ok=True)
    numbers = np.array_split(np.arange(num_images), num_archives)
    paths = []
    with ProcessPoolExecutor() as pool:
        for part, own in enumerate(numbers):
            runs = [own[at : at + _CROPS_OF_ONE] for at in range(0, len(own), _CROPS_OF_ONE)]
            made = pool.map(functools.partial(_crops, sources, seed), runs)
            path = folder / f"part-{part:02d}.zip"
            _write_zip(path, ((number, data) for run in made for number, data in run))
            paths.append(path)
    return paths


def _write_zip(path: Path, members: Iterator[tuple[int, bytes]]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number, data in members:
            name = f"class-{number % NUM_CLASSES}/{number:06d}.jpg"
            archive.writestr(zipfile.ZipInfo(name), data)


def _crops(sources: Sequence[Path], seed: int, numbers: Sequence[int]) -> list[tuple[int, bytes]]:
    """The crops of these numbers, all of one wallpaper: opening that is what takes time."""
    rng = np.random.default_rng([seed, int(numbers[0])])
    source = sources[int(rng.integers(len(sources)))]
    made = []
    with Image.open(source) as image:
        whole = image.convert("RGB")
    for number in numbers:
        width, height = (
            side + int(rng.integers(-JITTER_PX, JITTER_PX + 1)) for side in (WIDTH_PX, HEIGHT_PX)
        )
        scale = rng.uniform(1, min(whole.width / width, whole.height / height) / 1.5)
        box_width, box_height = scale * width, scale * height
        left = rng.uniform(0, whole.width - box_width)
        top = rng.uniform(0, whole.height - box_height)
        crop = whole.resize(
            (width, height),
            Image.Resampling.BILINEAR,
            box=(left, top, left + box_width, top + box_height),
        )
        buffer = io.BytesIO()
        crop.save(buffer, "JPEG", quality=_QUALITY)
        made.append((int(number), buffer.getvalue()))
    return made
