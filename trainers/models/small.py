"""A small convolutional net for small images, to see a pipeline run end to end within a minute.

Three convolutions, each with BatchNorm and ReLU; the first halves the sides, a pooling halves them
again; then max-pooling to 3x3, dropout and one linear layer. For 28x28 gray images it has 0.03
million weights.
"""

from __future__ import annotations

from torch import nn

_WIDTHS = (16, 32, 64)
_DROPOUT = 0.2
_FINAL_SIDE = 3


def small(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """The small net for images (H, W, C)."""
    first, second, third = _WIDTHS
    return nn.Sequential(
        *_convolution(shape[2], first, 5, stride=2),
        *_convolution(first, second, 3),
        nn.MaxPool2d(2),
        *_convolution(second, third, 3),
        nn.AdaptiveMaxPool2d(_FINAL_SIDE),
        nn.Flatten(),
        nn.Dropout(_DROPOUT),
        nn.Linear(third * _FINAL_SIDE**2, num_classes),
    )


def _convolution(num_in: int, num_out: int, side: int, stride: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(num_in, num_out, side, stride, padding=side // 2, bias=False),
        nn.BatchNorm2d(num_out),
        nn.ReLU(),
    ]
