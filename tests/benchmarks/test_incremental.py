"""What is measured is one edit at a time, and a row that costs too much says so."""

import io
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import incremental
from benchmarks.incremental import Row


def test_one_image_is_changed_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    picture = Image.linear_gradient("L").rotate(90)
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(5):
            file = io.BytesIO()
            picture.resize((20 + number, 16)).save(file, "JPEG")
            archive.writestr(f"{number}.jpg", file.getvalue())
    with zipfile.ZipFile(path) as archive:
        before = {name: archive.read(name) for name in archive.namelist()}
    incremental.change_one(path)
    with zipfile.ZipFile(path) as archive:
        after = {name: archive.read(name) for name in archive.namelist()}
    assert list(after) == list(before)
    assert [name for name in before if before[name] != after[name]] == ["2.jpg"]
    assert Image.open(io.BytesIO(after["2.jpg"])).size == (22, 16)


@pytest.mark.parametrize(
    ("row", "is_within"),
    [
        (Row("one image changed", 9, 0.10, 8), True),
        (Row("one image changed", 9, 0.11, 8), False),
        (Row("one image changed", 9, 0.10, 9), False),
        (Row("nothing, dvc repro", 2.6, 0.01, None), False),
        (Row("first build", 999, 1, 300), True),
    ],
)
def test_a_row_over_its_limit_is_marked(row: Row, is_within: bool) -> None:
    assert row.is_within == is_within
    assert ("over the limit" in str(row)) != is_within


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_row_is_measured(tmp_path: Path) -> None:
    wallpaper = tmp_path / "wallpapers" / "a.jpg"
    wallpaper.parent.mkdir()
    Image.effect_noise((1920, 1200), 90).save(wallpaper)
    rows = incremental.measure(tmp_path, 300, [wallpaper.parent])
    assert [row.name for row in rows] == list(incremental.LIMITS)
    by_name = {row.name: row for row in rows}
    assert (by_name["first build"].num_objects or 0) > (
        by_name["one image changed"].num_objects or 0
    )
