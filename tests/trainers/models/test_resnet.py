import pytest
import torch
from torch import nn

from trainers.models.resnet import BasicBlock, Bottleneck, resnet18, resnet50


def test_at_imagenet_size_it_has_the_weights_of_the_published_resnet18() -> None:
    model = resnet18((224, 224, 3), 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_689_512


@pytest.mark.parametrize(("side", "before_pooling"), [(32, 4), (96, 3)])
def test_small_images_keep_their_resolution_in_the_stem(side: int, before_pooling: int) -> None:
    model = resnet18((side, side, 3), 5).eval()
    seen = []
    pool = next(module for module in model if isinstance(module, nn.AdaptiveAvgPool2d))  # type: ignore[attr-defined]
    pool.register_forward_hook(lambda _, inputs, __: seen.append(tuple(inputs[0].shape)))
    with torch.no_grad():
        assert model(torch.zeros(1, 3, side, side)).shape == (1, 5)
    assert seen == [(1, 512, before_pooling, before_pooling)]


def test_a_block_starts_as_the_identity() -> None:
    images = torch.rand(2, 4, 5, 5)
    assert torch.equal(BasicBlock(4, 4, stride=1)(images), images)


def test_at_imagenet_size_it_has_the_weights_of_the_published_resnet50() -> None:
    model = resnet50((224, 224, 3), 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert resnet50((32, 32, 3), 5).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 5)


def test_a_bottleneck_starts_as_the_identity() -> None:
    images = torch.rand(2, 16, 5, 5)
    assert torch.equal(Bottleneck(16, 4, stride=1)(images), images)
