from pathlib import Path

import pytest
import torch
from torch.nn import functional

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import contents, set_params, train_here, train_there
from trainers.mix import Mix, cross_entropy

NUM = 400
IDS = torch.arange(NUM) * 7
LABELS = torch.arange(NUM) % 10


def draw() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (NUM, 6, 8, 3), dtype=torch.uint8, generator=generator)


def test_mixup_is_a_blend_with_the_sample_before_by_its_share() -> None:
    images = draw()
    mixed = Mix(1.0, 0.0, seed=1)(images, LABELS, IDS, 0)
    assert torch.equal(mixed.partners, LABELS.roll(1))
    weight = mixed.shares[:, None, None, None]
    expected = weight * images + (1 - weight) * images.roll(1, 0)
    assert (mixed.images - expected).abs().max() < 0.51
    assert mixed.shares.mean() == pytest.approx(0.5, abs=0.05)
    assert mixed.shares.std() == pytest.approx(1 / 12**0.5, abs=0.03)


def test_cutmix_covers_what_its_share_says() -> None:
    images = torch.zeros(NUM, 6, 8, 3, dtype=torch.uint8)
    images[1::2] = 255  # so that a sample and its partner differ everywhere
    mixed = Mix(0.0, 1.0, seed=1)(images, LABELS, IDS, 0)
    kept = (mixed.images == images).float().mean(dim=(1, 2, 3))
    torch.testing.assert_close(kept, mixed.shares)
    for image, own in zip(mixed.images, images, strict=True):
        rows, columns = (image != own)[..., 0].nonzero(as_tuple=True)
        if len(rows):  # a rectangle
            sides = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
            assert int(sides) == len(rows)


def test_what_is_not_mixed_stays_as_it_is() -> None:
    images = draw()
    mixed = Mix(0.2, 0.3, seed=1)(images, LABELS, IDS, 0)
    is_whole = mixed.shares == 1
    assert torch.equal(mixed.images[is_whole], images[is_whole])
    assert is_whole.float().mean() == pytest.approx(0.5, abs=0.08)
    assert not Mix(0.0, 0.0, seed=1).is_on


def test_how_a_sample_is_mixed_depends_on_its_id_epoch_and_seed_alone() -> None:
    images, mix = draw(), Mix(0.5, 0.5, seed=1)
    whole = mix(images, LABELS, IDS, 3).shares
    assert torch.equal(mix(images[5:9], LABELS[5:9], IDS[5:9], 3).shares, whole[5:9])
    assert not torch.equal(mix(images, LABELS, IDS, 4).shares, whole)
    assert not torch.equal(Mix(0.5, 0.5, seed=2)(images, LABELS, IDS, 3).shares, whole)


def test_the_loss_is_that_of_both_labels_by_their_shares() -> None:
    logits = torch.randn(NUM, 10, generator=torch.Generator().manual_seed(0))
    shares = torch.linspace(0, 1, NUM)
    soft = functional.one_hot(LABELS, 10) * shares[:, None]
    soft += functional.one_hot(LABELS.roll(1), 10) * (1 - shares[:, None])
    expected = functional.cross_entropy(logits, soft, label_smoothing=0.1)
    found = cross_entropy(logits, LABELS, LABELS.roll(1), shares, 0.1)
    torch.testing.assert_close(found, expected)


def test_more_than_all_samples_cannot_be_mixed(project: Path) -> None:
    set_params(project, mixup_probability=0.6, cutmix_probability=0.5)
    with pytest.raises(HeadraceError, match="in one way at most"):
        train_here(project)


@pytest.mark.slow
def test_ranks_change_no_bit_of_a_run_that_mixes_and_operates(project: Path) -> None:
    set_params(project, mixup_probability=0.5, cutmix_probability=0.5, num_operations=2)
    alone = contents(train_here(project))
    assert contents(train_there(project, 3)) == alone
