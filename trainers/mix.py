"""Mixing of images with each other, and of what is asked of the model: mixup and CutMix.

Sources: Zhang et al., mixup, ICLR 2018; Yun et al., CutMix, ICCV 2019; both with alpha 1, so that
the share of the own image is uniform in 0..1.

Keyed by (seed, epoch, sample id): whether and how a sample is mixed depends on nothing else. Its
partner is the one before it among the samples of its logical worker, so not on the number of ranks
or of microbatches either. Done on the device, on bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from trainers import rng

_STEPS = 1 << 16


class Mixed(NamedTuple):
    """Images with two labels each."""

    images: Tensor  # [B, H, W, C] uint8
    partners: Tensor  # [B] int64, labels
    shares: Tensor  # [B] float32, of the own label


@dataclass(frozen=True)
class Mix:
    """How samples are mixed.

    Args:
        mixup_probability: of a sample, that another one shines through it.
        cutmix_probability: that a rectangle of another one covers it; both sum up to at most 1.
        seed: of the run.
    """

    mixup_probability: float
    cutmix_probability: float
    seed: int

    @property
    def is_on(self) -> bool:
        """Whether anything is mixed at all."""
        return self.mixup_probability + self.cutmix_probability > 0

    def __call__(self, images: Tensor, labels: Tensor, sample_ids: Tensor, epoch: int) -> Mixed:
        """Mix the samples of a logical worker.

        Args:
            images: [B, H, W, C] uint8.
            labels: [B] int64.
            sample_ids: [B] int64.
            epoch: from 0.
        """
        _, height, width, _ = images.shape
        key = rng.key(self.seed, epoch, "mix")
        uppers = (_STEPS, _STEPS, height, width)
        kind, share, top, left = rng.draw(key, sample_ids, uppers)  # each [B]
        first = round(self.mixup_probability * _STEPS)
        last = first + round(self.cutmix_probability * _STEPS)
        is_mixup, is_cutmix = kind < first, (kind >= first) & (kind < last)
        own = share.double() / _STEPS
        others = images.roll(1, 0)
        inside = _rectangles(own, top, left, height, width)  # [B, H, W]
        covered = torch.where(inside[..., None], others, images)
        weight = own[:, None, None, None].float()
        blended = torch.lerp(others.float(), images.float(), weight).round_().to(torch.uint8)
        mixed = torch.where(_wide(is_mixup), blended, images)
        mixed = torch.where(_wide(is_cutmix), covered, mixed)
        shares = torch.where(is_mixup, own, torch.ones_like(own))
        visible = 1 - inside.double().mean(dim=(1, 2))
        shares = torch.where(is_cutmix, visible, shares)
        return Mixed(mixed, labels.roll(1), shares.float())


def cross_entropy(
    logits: Tensor, labels: Tensor, partners: Tensor, shares: Tensor, label_smoothing: float
) -> Tensor:
    """The mean over samples of what their two labels cost, by their shares; a scalar."""
    own, other = (
        functional.cross_entropy(logits, it, reduction="none", label_smoothing=label_smoothing)
        for it in (labels, partners)
    )
    return torch.lerp(other, own, shares).mean()


def _rectangles(own: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """[B, H, W] bool: inside of rectangles around (top, left) of 1 - `own` of the area, clipped."""
    side = (1 - own).sqrt()
    rows = torch.arange(height, device=own.device)
    columns = torch.arange(width, device=own.device)
    in_rows = (rows - top[:, None]).abs() * 2 < (side * height)[:, None]
    in_columns = (columns - left[:, None]).abs() * 2 < (side * width)[:, None]
    return in_rows[:, :, None] & in_columns[:, None, :]


def _wide(flags: Tensor) -> Tensor:
    return flags[:, None, None, None]
