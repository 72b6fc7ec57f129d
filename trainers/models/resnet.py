"""Residual networks, from torch alone.

Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016.

Images up to 64 pixels a side get the stem that the paper uses for CIFAR (one 3x3 convolution, no
pooling); larger ones that for ImageNet (7x7 of stride 2, then pooling). The last norm of each
block starts at zero, so that a block starts as the identity (Goyal et al., Accurate, Large
Minibatch SGD, 2017). ResNet-18 has 11.2 million weights, ResNet-50 23.5 million.
"""

from __future__ import annotations

from torch import Tensor, nn

MAX_SMALL_SIDE_PX = 64
_WIDTHS = (64, 128, 256, 512)


def resnet18(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """ResNet-18 for images (H, W, C)."""
    return _resnet(BasicBlock, (2, 2, 2, 2), shape, num_classes)


def resnet50(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """ResNet-50 for images (H, W, C)."""
    return _resnet(Bottleneck, (3, 4, 6, 3), shape, num_classes)


def _resnet(
    block: type[BasicBlock | Bottleneck],
    depths: tuple[int, ...],
    shape: tuple[int, int, int],
    num_classes: int,
) -> nn.Module:
    height, width, channels = shape
    layers = _small_stem(channels) if max(height, width) <= MAX_SMALL_SIDE_PX else _stem(channels)
    num_in = _WIDTHS[0]
    for stage, (num_out, depth) in enumerate(zip(_WIDTHS, depths, strict=True)):
        for index in range(depth):
            layers += [block(num_in, num_out, stride=2 if stage and not index else 1)]
            num_in = num_out * block.EXPANSION
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.append(nn.Linear(num_in, num_classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    [B, num_in, H, W] to [B, num_out, H / stride, W / stride].
    """

    EXPANSION = 1

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(),
            nn.Conv2d(num_out, num_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
        )
        nn.init.zeros_(self.residual[-1].weight)  # type: ignore[arg-type]
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)
            )
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """[B, num_in, H, W] to [B, num_out, H / stride, W / stride]."""
        return self.activation(self.residual(images) + self.shortcut(images))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1 beside a shortcut; the 3x3 one has the stride.

    [B, num_in, H, W] to [B, 4 * num_mid, H / stride, W / stride].
    """

    EXPANSION = 4

    def __init__(self, num_in: int, num_mid: int, stride: int) -> None:
        super().__init__()
        num_out = self.EXPANSION * num_mid
        self.residual = nn.Sequential(
            nn.Conv2d(num_in, num_mid, 1, bias=False),
            nn.BatchNorm2d(num_mid),
            nn.ReLU(),
            nn.Conv2d(num_mid, num_mid, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(num_mid),
            nn.ReLU(),
            nn.Conv2d(num_mid, num_out, 1, bias=False),
            nn.BatchNorm2d(num_out),
        )
        nn.init.zeros_(self.residual[-1].weight)  # type: ignore[arg-type]
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)
            )
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """[B, num_in, H, W] to [B, 4 * num_mid, H / stride, W / stride]."""
        return self.activation(self.residual(images) + self.shortcut(images))  # type: ignore[no-any-return]


def _small_stem(channels: int) -> list[nn.Module]:
    num = _WIDTHS[0]
    return [
        nn.Conv2d(channels, num, 3, padding=1, bias=False),
        nn.BatchNorm2d(num),
        nn.ReLU(),
    ]


def _stem(channels: int) -> list[nn.Module]:
    num = _WIDTHS[0]
    return [
        nn.Conv2d(channels, num, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(num),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
