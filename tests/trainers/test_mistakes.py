from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainers.mistakes import GAP_PX, LINE_PX, NUM_LINES, SIDE_PX, Mistake, draw


def mistake(shape: tuple[int, int, int], gray: int = 0, **changed: str) -> Mistake:
    words = {"key": "test/boots/0001", "actual": "Boot", "predicted": "Bag"} | changed
    return Mistake(image=np.full(shape, gray, np.uint8), confidence=0.97, **words)


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        return np.asarray(picture.convert("RGB"))


def test_each_image_stands_in_its_tile(tmp_path: Path) -> None:
    colours = [10, 60, 110, 160, 210]
    draw([mistake((28, 28, 1), gray) for gray in colours], tmp_path / "m.png")
    sheet = opened(tmp_path / "m.png")
    width, height = SIDE_PX + GAP_PX, SIDE_PX + NUM_LINES * LINE_PX + GAP_PX
    columns = (sheet.shape[1] - GAP_PX) // width
    for number, gray in enumerate(colours):
        row, column = divmod(number, columns)
        centre = sheet[GAP_PX + row * height + SIDE_PX // 2, GAP_PX + column * width + SIDE_PX // 2]
        assert centre.tolist() == [gray] * 3


@pytest.mark.parametrize("shape", [(28, 28, 1), (3, 500, 3), (900, 31, 3), (1, 1, 1)])
def test_any_shape_fits_a_tile(tmp_path: Path, shape: tuple[int, int, int]) -> None:
    draw([mistake(shape)], tmp_path / "m.png")
    sheet = opened(tmp_path / "m.png")
    assert sheet.shape[1] == SIDE_PX + 2 * GAP_PX
    black = np.argwhere((sheet[: GAP_PX + SIDE_PX] == 0).all(axis=-1))
    assert black.min() >= GAP_PX
    assert np.ptp(black, axis=0).max() == SIDE_PX - 1


def test_colours_stay_what_they_are(tmp_path: Path) -> None:
    seen = mistake((8, 8, 3))
    seen.image[:] = (250, 120, 5)
    draw([seen], tmp_path / "m.png")
    centre = opened(tmp_path / "m.png")[GAP_PX + SIDE_PX // 2, GAP_PX + SIDE_PX // 2]
    assert centre.tolist() == [250, 120, 5]


def test_words_that_are_too_long_stay_in_their_tile(tmp_path: Path) -> None:
    long = "Oxford_shirt_with_a_name_that_nobody_can_read_in_one_breath"
    draw([mistake((8, 8, 1), key=long, actual=long, predicted=long)], tmp_path / "m.png")
    margin = opened(tmp_path / "m.png")[:, GAP_PX + SIDE_PX + 1 :]
    assert (margin == 255).all()


def test_names_in_any_script_can_be_drawn(tmp_path: Path) -> None:
    draw([mistake((8, 8, 1), key="тест/靴", actual="Schöße", predicted="靴")], tmp_path / "m.png")
    assert opened(tmp_path / "m.png").size


def test_equal_mistakes_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        draw([mistake((28, 28, 1), gray) for gray in range(9)], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_other_words_are_other_bytes(tmp_path: Path) -> None:
    draw([mistake((28, 28, 1))], tmp_path / "a.png")
    draw([mistake((28, 28, 1), predicted="Coat")], tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "b.png").read_bytes()


def test_no_mistake_is_a_picture_too(tmp_path: Path) -> None:
    draw([], tmp_path / "m.png")
    assert opened(tmp_path / "m.png").min() < 255
