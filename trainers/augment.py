"""Augmentation of a whole microbatch at once, on the device where the images are.

Random crop after zero padding, and horizontal flip, keyed by (seed, epoch, sample id, operation):
what happens to a sample does not depend on the batch it stands in, nor on the rank or thread that
reads it. Costs one gather of the uint8 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trainers import rng

_FLIP_STEPS = 1 << 16


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images.

    Args:
        crop_padding_px: zeros put around an image before a crop of its own size; 0 for no crop.
        flip_probability: of a horizontal flip, 0..1, resolved to 1/65536.
        seed: of the run.
    """

    crop_padding_px: int
    flip_probability: float
    seed: int

    def __call__(self, images: Tensor, sample_ids: Tensor, epoch: int) -> Tensor:
        """Crop and flip.

        Args:
            images: [B, H, W, C] uint8.
            sample_ids: [B] int64, on the same device.
            epoch: from 0; another epoch draws anew.

        Returns: [B, H, W, C] uint8, a new tensor, or `images` itself where nothing is to be done.
        """
        if not self.crop_padding_px and not self.flip_probability:
            return images
        num, height, width, _ = images.shape
        span = 2 * self.crop_padding_px + 1
        key = rng.key(self.seed, epoch, "crop and flip")
        top, left, flip = rng.draw(key, sample_ids, (span, span, _FLIP_STEPS))  # each [B]
        flipped = flip < round(self.flip_probability * _FLIP_STEPS)

        steps = torch.arange(max(height, width), device=images.device)
        rows = top[:, None] + steps[:height]  # [B, H]
        columns = torch.where(flipped[:, None], width - 1 - steps[:width], steps[:width])
        columns = left[:, None] + columns  # [B, W]
        pad = self.crop_padding_px
        padded = functional.pad(images, (0, 0, pad, pad, pad, pad))
        batch = torch.arange(num, device=images.device)
        return padded[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
