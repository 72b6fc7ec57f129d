import pytest
import torch

from trainers.models.small import small


@pytest.mark.parametrize("shape", [(28, 28, 1), (12, 12, 1), (8, 20, 3), (96, 96, 3)])
def test_images_of_any_size_become_logits(shape: tuple[int, int, int]) -> None:
    height, width, channels = shape
    logits = small(shape, 7)(torch.zeros(2, channels, height, width))
    assert logits.shape == (2, 7)


def test_it_has_batch_norm_and_dropout_and_few_weights() -> None:
    model = small((28, 28, 1), 10)
    kinds = {type(module).__name__ for module in model.modules()}
    assert {"BatchNorm2d", "Dropout"} <= kinds
    assert sum(parameter.numel() for parameter in model.parameters()) == 29_434
