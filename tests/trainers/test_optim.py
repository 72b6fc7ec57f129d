import math
from typing import Any, Literal

import pytest
import torch
from torch import nn

from pipelines.core.errors import HeadraceError
from trainers import optim


def test_the_rate_rises_linearly_and_falls_as_a_cosine() -> None:
    rates = [
        optim.learning_rate(step, num_steps=12, num_warmup_steps=4, peak=1.0) for step in range(12)
    ]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[8] == pytest.approx(0.5)
    assert rates[11] == pytest.approx((1 + math.cos(math.pi * 7 / 8)) / 2)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_no_warmup_starts_at_the_peak_and_nothing_but_warmup_ends_there() -> None:
    assert optim.learning_rate(0, num_steps=5, num_warmup_steps=0, peak=0.3) == 0.3
    assert optim.learning_rate(4, num_steps=5, num_warmup_steps=5, peak=0.3) == 0.3


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_norms_and_biases_do_not_decay(kind: Literal["sgd", "adamw"]) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    optimizer = optim.build(model, kind, momentum=0.9, weight_decay=0.1)
    decayed, kept = optimizer.param_groups
    assert [tuple(p.shape) for p in decayed["params"]] == [(2, 1, 3, 3)]
    assert len(kept["params"]) == 3
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)


def test_the_rate_is_set_on_all_groups() -> None:
    model = nn.Linear(2, 2)
    optimizer = optim.build(model, "sgd", momentum=0.0, weight_decay=0.0)
    optim.set_learning_rate(optimizer, 0.5)
    before = model.bias.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.bias, before - 0.5)


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(HeadraceError, match="no trainable parameter"):
        optim.build(nn.Linear(2, 2).requires_grad_(False), "sgd", momentum=0.9, weight_decay=0)


def test_the_average_follows_the_published_warm_up_of_its_decay() -> None:
    model = nn.BatchNorm1d(1)
    average = optim.averaged(model, decay=0.5)
    averages = []
    averaged: Any = average.module
    for value in (1.0, 2.0, 4.0):
        nn.init.constant_(model.weight, value)
        model.running_var.fill_(value)  # type: ignore[union-attr]
        model.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        average.update_parameters(model)
        averages.append(averaged.weight.item())
    second = 1.0 + (1 - 2 / 11) * (2.0 - 1.0)
    third = second + (1 - 3 / 12) * (4.0 - second)
    assert averages == pytest.approx([1.0, second, third])
    assert averaged.running_var.item() == pytest.approx(third)
    assert averaged.num_batches_tracked.item() == 3


def test_decay_zero_is_the_model_itself() -> None:
    model = nn.Linear(3, 3)
    average = optim.averaged(model, decay=0.0)
    for _ in range(2):
        nn.init.normal_(model.weight)
        average.update_parameters(model)
    assert torch.equal(average.module.state_dict()["weight"], model.weight)
