import torch

from trainers.augment import Augmentation

IDS = torch.tensor([3, 41, 5, 1000, 7])


def draw(num: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (num, 6, 8, 3), dtype=torch.uint8, generator=generator)


def test_a_sample_is_treated_alike_in_any_batch() -> None:
    augment, images = Augmentation(2, 0.5, seed=1), draw()
    whole = augment(images, IDS, 3)
    alone = torch.cat([augment(images[i : i + 1], IDS[i : i + 1], 3) for i in range(5)])
    assert torch.equal(whole, alone)
    order = torch.tensor([4, 2, 0, 1, 3])
    assert torch.equal(augment(images[order], IDS[order], 3), whole[order])


def test_each_result_is_a_crop_of_the_padded_image_perhaps_flipped() -> None:
    images = draw()
    results = Augmentation(2, 0.5, seed=1)(images, IDS, 0)
    padded = torch.nn.functional.pad(images, (0, 0, 2, 2, 2, 2))
    for result, image in zip(results, padded, strict=True):
        crops = [image[top : top + 6, left : left + 8] for top in range(5) for left in range(5)]
        assert any(torch.equal(result, c) or torch.equal(result, c.flip(1)) for c in crops)


def test_flips_happen_as_often_as_asked() -> None:
    image = torch.tensor([[[1], [2]]], dtype=torch.uint8).expand(4000, 1, 2, 1)
    for probability in (0.0, 0.25, 1.0):
        flipped = (
            Augmentation(0, probability, seed=1)(image, torch.arange(4000), 0)[:, 0, 0, 0] == 2
        )
        assert abs(flipped.float().mean().item() - probability) < 0.035


def test_epochs_and_seeds_draw_anew() -> None:
    images = draw(1).expand(64, -1, -1, -1)
    ids = torch.arange(64)
    base = Augmentation(2, 0.5, seed=1)(images, ids, 0)
    assert not torch.equal(base, Augmentation(2, 0.5, seed=1)(images, ids, 1))
    assert not torch.equal(base, Augmentation(2, 0.5, seed=2)(images, ids, 0))


def test_nothing_to_do_does_nothing() -> None:
    images = draw()
    assert Augmentation(0, 0.0, seed=1)(images, IDS, 0) is images
