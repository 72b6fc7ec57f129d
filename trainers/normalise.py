"""From stored bytes to what a model sees: centred, scaled float32, channels first.

Mean and standard deviation are those of the training split, which `decode` measures and the index
names. They travel with the weights, and evaluation uses them from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_MIN_STD = 1e-3  # of a channel that is one colour throughout; keeps the quotient finite


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, of pixel values scaled to 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Tensor) -> Tensor:
        """[B, H, W, C] uint8 to float32 [B, C, H, W], a channels-last view, on their device."""
        scale, shift = _constants(self, images.device)
        return torch.addcmul(shift, images.float(), scale).permute(0, 3, 1, 2)


@cache
def _constants(of: Normalisation, device: torch.device) -> tuple[Tensor, Tensor]:
    """`scale` and `shift`, [C] float32, with which a byte b becomes b * scale + shift."""
    mean = torch.tensor(of.mean, dtype=torch.float64)
    std = torch.tensor(of.std, dtype=torch.float64).clamp(min=_MIN_STD)
    return (1 / (255 * std)).float().to(device), (-mean / std).float().to(device)
