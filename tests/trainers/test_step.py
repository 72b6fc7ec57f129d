import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import alone
from trainers import optim
from trainers.augment import Augmentation
from trainers.mix import Mix
from trainers.normalise import Normalisation
from trainers.operations import Operations
from trainers.reader.slots import Microbatch
from trainers.step import Outcome, Position, Recipe, Trainer

NUM_WORKERS = 4
RECIPE: dict[str, Any] = {
    "seed": 1,
    "num_logical_workers": NUM_WORKERS,
    "num_accumulation_steps": 1,
    "precision": "fp32",
    "reduction": "exact",
    "label_smoothing": 0.0,
    "max_gradient_norm": 0.0,
    "recomputes": False,
    "compiles": False,
    "augmentation": Augmentation(0, 0.0, 1),
    "operations": Operations(0, 0.0, 1),
    "mix": Mix(0.0, 0.0, 1),
    "normalisation": Normalisation((0.5,), (0.25,)),
}


@pytest.fixture(autouse=True, scope="module")
def _group() -> Iterator[None]:
    with alone():
        yield


def shares(batch: int = 4) -> list[Microbatch]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(
        0, 256, (NUM_WORKERS, batch, 4, 4, 1), dtype=torch.uint8, generator=generator
    )
    labels = torch.randint(0, 3, (NUM_WORKERS, batch), generator=generator)
    ids = torch.arange(NUM_WORKERS * batch).view(NUM_WORKERS, batch)
    mask = torch.ones(NUM_WORKERS, batch, dtype=torch.bool)
    return [Microbatch(k, images[k], labels[k], ids[k], mask[k]) for k in range(NUM_WORKERS)]


def plain() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


def with_state() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3)
    )


def trainer(model: nn.Module, **changes: Any) -> Trainer:
    recipe = Recipe(**RECIPE | changes)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = optim.build(model, "sgd", momentum=0.0, weight_decay=0.0)
    optim.set_learning_rate(optimizer, 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=256, enabled=recipe.precision == "fp16")
    return Trainer(model, optimizer, scaler, recipe)


def step(model: nn.Module, number: int = 0, **changes: Any) -> Outcome:
    return trainer(model, **changes).step(Position(0, number), shares(), stop=False)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def reference(batch: int = 4) -> tuple[float, Tensor]:
    """Loss and updated weights of plain PyTorch on the whole batch."""
    model = plain()
    images = torch.cat([share.images for share in shares(batch)])
    labels = torch.cat([share.labels for share in shares(batch)])
    inputs = ((images / 255 - 0.5) / 0.25).permute(0, 3, 1, 2)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return float(loss.detach()), weights(model)


@pytest.mark.parametrize("reduction", ["exact", "ddp"])
@pytest.mark.parametrize("num_accumulation_steps", [1, 2])
def test_a_step_is_that_of_plain_pytorch_on_the_whole_batch(
    reduction: str, num_accumulation_steps: int
) -> None:
    model = plain()
    outcome = step(model, reduction=reduction, num_accumulation_steps=num_accumulation_steps)
    loss, expected = reference()
    assert outcome.loss == pytest.approx(loss, rel=1e-6)
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-7)


def test_the_order_of_a_ranks_workers_changes_no_bit() -> None:
    forward, backward = with_state(), with_state()
    trainer(forward).step(Position(0, 0), shares(), stop=False)
    trainer(backward).step(Position(0, 0), shares()[::-1], stop=False)
    for name, tensor in forward.state_dict().items():
        assert torch.equal(tensor, backward.state_dict()[name]), name


def test_running_statistics_are_the_mean_over_workers_of_one_update_each() -> None:
    model = with_state()
    convolution, norm = model[0], model[1]  # type: ignore[index]
    with torch.no_grad():
        means = [
            convolution(Normalisation((0.5,), (0.25,)).apply(share.images)).mean(dim=(0, 2, 3))
            for share in shares()
        ]
    step(model)
    torch.testing.assert_close(norm.running_mean, 0.1 * torch.stack(means).mean(dim=0))
    assert norm.num_batches_tracked == 1


def test_dropout_is_keyed_by_seed_and_step() -> None:
    losses = [step(with_state(), number).loss for number in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    assert step(with_state(), 0, seed=2).loss != losses[0]


def test_gradients_are_clipped_to_their_norm() -> None:
    model = plain()
    before = weights(model)
    step(model, max_gradient_norm=0.01)
    assert (weights(model) - before).norm() == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_hits_are_counted_exactly() -> None:
    model = plain()
    outcome = step(model)
    images = torch.cat([share.images for share in shares()])
    labels = torch.cat([share.labels for share in shares()])
    predicted = plain()(Normalisation((0.5,), (0.25,)).apply(images)).argmax(dim=1)
    assert outcome.num_correct == int((predicted == labels).sum())


def test_a_request_to_stop_reaches_the_outcome() -> None:
    asked = trainer(plain()).step(Position(0, 0), shares(), stop=True)
    assert asked.is_stop_wanted
    assert not step(plain()).is_stop_wanted


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_other_precisions_come_near_to_fp32(precision: str) -> None:
    model = plain()
    assert step(model, precision=precision).loss == pytest.approx(reference()[0], rel=0.02)
    torch.testing.assert_close(weights(model), reference()[1], rtol=0.05, atol=0.005)


def test_fp16_skips_a_step_that_overflows_and_lowers_its_scale() -> None:
    model = with_state()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    working = trainer(model, precision="fp16")
    working.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    outcome = working.step(Position(0, 0), shares(), stop=False)
    assert outcome.is_skipped
    assert outcome.is_finite
    assert math.isfinite(outcome.loss)
    assert working.scaler.get_scale() == 2.0**39
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("reduction", ["exact", "ddp"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_loss_that_is_not_finite_changes_nothing(reduction: str, precision: str) -> None:
    model = with_state()
    with torch.no_grad():
        model[0].weight[0, 0] = math.inf  # type: ignore[index]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    working = trainer(model, reduction=reduction, precision=precision)
    outcome = working.step(Position(0, 17), shares(), stop=False)
    assert outcome.is_skipped
    assert not outcome.is_finite
    assert working.scaler.get_scale() == (256 if precision == "fp16" else 1)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("reduction", ["exact", "ddp"])
def test_a_parameter_that_is_not_used_is_named(reduction: str) -> None:
    model = plain()
    model.register_parameter("forgotten", nn.Parameter(torch.zeros(2)))
    with pytest.raises(HeadraceError, match="does not depend on") as caught:
        step(model, reduction=reduction)
    assert caught.value.found == "forgotten"
