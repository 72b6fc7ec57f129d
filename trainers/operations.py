"""Random operations on images: how they lie, and how bright they are.

After Cubuk et al., RandAugment, CVPR Workshops 2020: each image goes through a number of
operations, drawn with equal chances, all of one magnitude. Of the fourteen there, these are the
nine that need no statistics of the image, besides none at all.

Keyed by (seed, epoch, sample id), so a sample is treated alike in whatever batch it stands. Done on
the device for a whole batch at once: a round costs one gather and some arithmetic on bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trainers import rng

_KINDS: Final = (
    "none",
    "rotate",
    "shear rows",
    "shear columns",
    "move rows",
    "move columns",
    "brighten",
    "stretch",
    "posterise",
    "solarise",
)
_MAX_ANGLE: Final = math.radians(30)
_MAX_SHEAR: Final = 0.3
_MAX_MOVE: Final = 0.3  # of a side
_MAX_CHANGE: Final = 0.9  # of brightness, and of contrast around the middle gray
_MAX_BITS: Final = 4  # that posterising takes away
_MIDDLE: Final = 127.5


@dataclass(frozen=True)
class Operations:
    """What is done to training images after crop and flip.

    Args:
        num: operations on each image, one after another; 0 for none.
        magnitude: 0..1 of the largest change.
        seed: of the run.
    """

    num: int
    magnitude: float
    seed: int

    def __call__(self, images: Tensor, sample_ids: Tensor, epoch: int) -> Tensor:
        """Change images [B, H, W, C] uint8 with ids [B] int64; the same shape and dtype."""
        for number in range(self.num):
            key = rng.key(self.seed, epoch, "operations", number)
            kind, sign = rng.draw(key, sample_ids, (len(_KINDS), 2))  # each [B]
            amount = self.magnitude * (2 * sign - 1).double()  # [B]
            images = _moved(images, kind, amount)
            images = _toned(images, kind, amount)
        return images


def _is(kind: Tensor, name: str) -> Tensor:
    return kind == _KINDS.index(name)


def _only(kind: Tensor, name: str, value: Tensor) -> Tensor:
    """`value` where the operation is `name`, else 0; [B]."""
    return torch.where(_is(kind, name), value, torch.zeros_like(value))


def _moved(images: Tensor, kind: Tensor, amount: Tensor) -> Tensor:
    """Each pixel from the nearest to where it lay before, black from outside."""
    num, height, width, _ = images.shape
    angle = _only(kind, "rotate", amount * _MAX_ANGLE)
    shear_rows = _only(kind, "shear rows", amount * _MAX_SHEAR)
    shear_columns = _only(kind, "shear columns", amount * _MAX_SHEAR)
    down = _only(kind, "move rows", amount * _MAX_MOVE * height)
    right = _only(kind, "move columns", amount * _MAX_MOVE * width)
    y = torch.arange(height, device=images.device).double() - (height - 1) / 2
    x = torch.arange(width, device=images.device).double() - (width - 1) / 2
    y, x = y[None, :, None], x[None, None, :]
    cos, sin = _wide(angle.cos()), _wide(angle.sin())
    rows = cos * y + (sin + _wide(shear_rows)) * x + _wide(down) + (height - 1) / 2
    columns = cos * x + (_wide(shear_columns) - sin) * y + _wide(right) + (width - 1) / 2
    rows, columns = rows.round().long(), columns.round().long()  # each [B, H, W]
    is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    batch = torch.arange(num, device=images.device)[:, None, None]
    found = images[batch, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return found * is_inside[..., None]


def _toned(images: Tensor, kind: Tensor, amount: Tensor) -> Tensor:
    """Brightness, contrast, number of gray levels, negative of what is bright."""
    brighten = 1 + _only(kind, "brighten", amount * _MAX_CHANGE)
    stretch = 1 + _only(kind, "stretch", amount * _MAX_CHANGE)
    values = images.float() * _wide(brighten.float())[..., None]
    values = (values - _MIDDLE) * _wide(stretch.float())[..., None] + _MIDDLE
    toned = values.round_().clamp_(0, 255).to(torch.uint8)
    bits = _only(kind, "posterise", (amount.abs() * _MAX_BITS).round()).to(torch.uint8)
    toned = (toned >> _wide(bits)[..., None]) << _wide(bits)[..., None]
    limit = 256 - _only(kind, "solarise", (amount.abs() * 256).round()).to(torch.int64)
    return torch.where(toned >= _wide(limit)[..., None], 255 - toned, toned)


def _wide(values: Tensor) -> Tensor:
    return values[:, None, None]
