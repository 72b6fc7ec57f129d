import pytest
import torch

from trainers.models.vit import vit_s


@pytest.mark.parametrize("shape", [(28, 28, 1), (30, 18, 3), (224, 224, 3)])
def test_any_shape_gives_logits(shape: tuple[int, int, int]) -> None:
    height, width, channels = shape
    model = vit_s(shape, 5).eval()
    with torch.no_grad():
        assert model(torch.rand(2, channels, height, width)).shape == (2, 5)


def test_it_has_the_size_of_vit_s() -> None:
    num = sum(parameter.numel() for parameter in vit_s((224, 224, 3), 1000).parameters())
    # 22,050,664 of DeiT-S, less the class token with its position.
    assert num == 22_050_664 - 2 * 384


def test_the_place_of_a_patch_matters() -> None:
    torch.manual_seed(0)
    model = vit_s((8, 8, 1), 3).eval()
    images = torch.rand(1, 1, 8, 8)
    with torch.no_grad():
        assert not torch.allclose(model(images), model(images.flip(3)), atol=1e-4)
