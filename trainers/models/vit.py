"""Vision transformers, from torch alone.

Source: Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; the small size is that of
Touvron et al., DeiT, ICML 2021, with the mean over patches in place of a class token (Beyer et al.,
Better plain ViT baselines, 2022).

Patches are 16 pixels a side for images of at least 128, else 4, and at the right and lower edge
filled up with zeros. ViT-S has 22 million weights.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_WIDTH, _DEPTH, _NUM_HEADS = 384, 12, 6
_MIN_LARGE_SIDE_PX = 128
_POSITION_STD = 0.02


def vit_s(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """ViT-S for images (H, W, C)."""
    return VisionTransformer(shape, num_classes)


class VisionTransformer(nn.Module):
    """[B, C, H, W] to logits [B, num_classes]."""

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        height, width, channels = shape
        side = 16 if min(height, width) >= _MIN_LARGE_SIDE_PX else 4
        self.side = side
        self.patches = nn.Conv2d(channels, _WIDTH, side, side)
        num_patches = math.ceil(height / side) * math.ceil(width / side)
        self.positions = nn.Parameter(torch.empty(num_patches, _WIDTH))
        nn.init.trunc_normal_(self.positions, std=_POSITION_STD)
        self.blocks = nn.ModuleList(Block(_WIDTH, _NUM_HEADS) for _ in range(_DEPTH))
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C, H, W] to [B, num_classes]."""
        bottom, right = (-length % self.side for length in images.shape[2:])
        images = functional.pad(images, (0, right, 0, bottom))
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions  # [B, N, D]
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens).mean(dim=1))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and a perceptron, each after a norm and beside a shortcut."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] to [B, N, D]."""
        tokens = tokens + self.out(self._attended(self.norm_1(tokens)))
        return tokens + self.perceptron(self.norm_2(tokens))  # type: ignore[no-any-return]

    def _attended(self, tokens: Tensor) -> Tensor:
        num, length, width = tokens.shape
        parts = self.query_key_value(tokens).view(num, length, 3, self.num_heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [B, heads, N, D / heads]
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(num, length, width)
