"""A picture of mistakes: what the model saw, what it is, what the model took it for, and how sure.

One PNG; its bytes are a function of the arguments (within one version of Pillow). Pillow's built-in
font knows Latin letters; others are drawn as boxes, and the key still names the sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SIDE_PX = 128
GAP_PX = 12
LINE_PX = 16
FONT_PX = 13
NUM_LINES = 3
RATIO = 1.6  # of the grid, wide to high: as wide as screens are

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Mistake:
    """One sample whose class was not predicted."""

    image: NDArray[np.uint8]  # [H, W, C], C is 1 or 3
    key: str
    actual: str
    predicted: str
    confidence: float


def draw(mistakes: Sequence[Mistake], path: Path) -> None:
    """Draw a grid of mistakes, row by row, into the PNG `path`; of none, a line that says so."""
    font = ImageFont.load_default(FONT_PX)
    if not mistakes:
        sheet = Image.new("RGB", (240, 2 * GAP_PX + LINE_PX), "white")
        ImageDraw.Draw(sheet).text((GAP_PX, GAP_PX), "No mistakes.", "black", font)
    else:
        sheet = _sheet(mistakes, font)
    sheet.save(path, optimize=False)


def _sheet(mistakes: Sequence[Mistake], font: Font) -> Image.Image:
    width, height = SIDE_PX + GAP_PX, SIDE_PX + NUM_LINES * LINE_PX + GAP_PX
    columns = min(len(mistakes), math.ceil(math.sqrt(len(mistakes) * RATIO * height / width)))
    rows = math.ceil(len(mistakes) / columns)
    sheet = Image.new("RGB", (columns * width + GAP_PX, rows * height + GAP_PX), "white")
    for number, mistake in enumerate(mistakes):
        row, column = divmod(number, columns)
        _tile(sheet, (GAP_PX + column * width, GAP_PX + row * height), mistake, font)
    return sheet


def _tile(sheet: Image.Image, corner: tuple[int, int], mistake: Mistake, font: Font) -> None:
    left, top = corner
    picture = _fitted(mistake.image)
    sheet.paste(
        picture, (left + (SIDE_PX - picture.width) // 2, top + (SIDE_PX - picture.height) // 2)
    )
    pen = ImageDraw.Draw(sheet)
    texts = (
        (f"is {mistake.actual}", "#1a7f37"),
        (f"{mistake.confidence:.0%} {mistake.predicted}", "#c0341d"),
        (mistake.key, "#6e6e6e"),
    )
    for number, (text, colour) in enumerate(texts):
        place = (left, top + SIDE_PX + 2 + number * LINE_PX)
        pen.text(place, _cut(text, font, from_front=number == NUM_LINES - 1), colour, font)


def _fitted(image: NDArray[np.uint8]) -> Image.Image:
    """Scaled to fit a square of `SIDE_PX`; the pixels of small images stay apart."""
    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("RGB")
    scale = SIDE_PX / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX)


def _cut(text: str, font: Font, *, from_front: bool) -> str:
    """Shorten `text` to the width of a tile; the end of a key is telling, of a label the front."""
    whole = text
    while text and font.getlength(text if text == whole else f"...{text}") > SIDE_PX:
        text = text[1:] if from_front else text[:-1]
    if text == whole:
        return text
    return f"...{text}" if from_front else f"{text}..."
