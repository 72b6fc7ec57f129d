import pytest
import torch

from trainers import operations
from trainers.operations import Operations

IDS = torch.arange(300) * 3


def draw(num: int = 300) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (num, 9, 9, 1), dtype=torch.uint8, generator=generator)


def only(name: str, images: torch.Tensor, amount: float) -> torch.Tensor:
    kind = torch.full((len(images),), operations._KINDS.index(name))
    amounts = torch.full((len(images),), amount, dtype=torch.float64)
    return operations._toned(operations._moved(images, kind, amounts), kind, amounts)


def test_a_sample_is_treated_alike_in_any_batch() -> None:
    images, operate = draw(), Operations(2, 0.7, seed=1)
    whole = operate(images, IDS, 3)
    assert whole.dtype == torch.uint8
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert torch.equal(operate(images[order], IDS[order], 3), whole[order])
    assert torch.equal(operate(images[7:8], IDS[7:8], 3), whole[7:8])


def test_epochs_seeds_and_rounds_draw_anew() -> None:
    images = draw()
    base = Operations(1, 0.7, seed=1)(images, IDS, 0)
    assert not torch.equal(base, Operations(1, 0.7, seed=1)(images, IDS, 1))
    assert not torch.equal(base, Operations(1, 0.7, seed=2)(images, IDS, 0))
    assert not torch.equal(base, Operations(2, 0.7, seed=1)(images, IDS, 0))


def test_no_operation_and_no_magnitude_change_nothing() -> None:
    images = draw()
    assert Operations(0, 1.0, seed=1)(images, IDS, 0) is images
    assert torch.equal(Operations(3, 0.0, seed=1)(images, IDS, 0), images)
    for name in operations._KINDS:
        assert torch.equal(only(name, images, 0.0), images), name


def test_every_kind_happens_and_some_images_stay_as_they_are() -> None:
    images = draw()
    found = Operations(1, 0.7, seed=1)(images, IDS, 0)
    share = (found == images).flatten(1).all(dim=1).float().mean()
    assert share == pytest.approx(0.1, abs=0.05)
    for name in operations._KINDS[1:]:
        assert not torch.equal(only(name, images, 0.7), images), name


def test_geometry_is_what_its_name_says() -> None:
    images = torch.zeros(1, 9, 9, 1, dtype=torch.uint8)
    images[0, 4, 4] = 255
    images[0, 4, 8] = 100
    moved = only("move rows", images, 1.0)  # by 0.3 * 9 = 2.7 pixels
    assert moved[0, 1, 4] == 255
    assert only("move columns", images, -1.0)[0, 4, 7] == 255
    turned = only("rotate", images, 1.0)
    assert turned[0, 4, 4] == 255  # the middle stays
    assert 100 in (turned[0, 2, 7], turned[0, 6, 7])  # by 30 degrees
    assert turned[0, 4, 8] == 0
    for name in ("shear rows", "shear columns"):
        assert only(name, images, 1.0)[0, 4, 4] == 255


def test_tones_are_what_their_name_says() -> None:
    gray = torch.tensor([0, 10, 100, 200, 255], dtype=torch.uint8).view(1, 1, 5, 1)
    values = {
        ("brighten", 0.5): [0, 14, 145, 255, 255],
        ("brighten", -1.0): [0, 1, 10, 20, 26],
        ("stretch", -1.0): [115, 116, 125, 135, 140],
        ("posterise", 1.0): [0, 0, 96, 192, 240],
        ("solarise", 0.5): [0, 10, 100, 55, 0],
    }
    for (name, amount), expected in values.items():
        found = only(name, gray, amount).flatten().tolist()
        assert found == pytest.approx(expected, abs=1), name
