"""Optimizer, learning rate and averaged weights.

The learning rate is a pure function of the step: nothing of it needs to be saved, and it cannot
drift over a resume. Every update is elementwise on gradients that all ranks hold in full, so ranks
stay equal bit by bit without talking.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, assert_never

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from pipelines.core.errors import HeadraceError

Tensors: TypeAlias = tuple[Tensor, ...] | list[Tensor]

ADAMW_BETAS = (0.9, 0.999)


def learning_rate(step: int, *, num_steps: int, num_warmup_steps: int, peak: float) -> float:
    """Linear warm-up from `peak` / `num_warmup_steps`, then a cosine towards 0 at `num_steps`.

    Source: Loshchilov and Hutter, SGDR, ICLR 2017, with one cycle.

    Args:
        step: from 0; the step that is about to be made.
        num_steps: of the whole run.
        num_warmup_steps: 0 .. `num_steps`.
        peak: the rate at the end of the warm-up.
    """
    if step < num_warmup_steps:
        return peak * (step + 1) / num_warmup_steps
    progress = (step - num_warmup_steps) / max(1, num_steps - num_warmup_steps)
    return peak * (1 + math.cos(math.pi * progress)) / 2


def build(
    model: nn.Module, kind: Literal["sgd", "adamw"], *, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or AdamW, without a rate as yet (`set_learning_rate`).

    Biases and norms, that is tensors of fewer than two dimensions, do not decay.

    The rate is set before each step; see `set_learning_rate`.

    Raises:
        HeadraceError: the model has nothing to train.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise HeadraceError(
            "The model has no trainable parameter.",
            where=f"model {type(model).__name__}",
            expected="at least one parameter with requires_grad",
            found=f"{sum(1 for _ in model.parameters())} parameters, all of them frozen",
            fix="unfreeze a layer of the model that params.yaml names under train: model",
        )
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    match kind:
        case "sgd":
            return torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=momentum > 0)
        case "adamw":
            return torch.optim.AdamW(groups, lr=0.0, betas=ADAMW_BETAS)
    assert_never(kind)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of all weights and floating-point buffers of `model`.

    After n updates the decay is min(`decay`, (1 + n) / (10 + n)), so that a short run does not
    average over its random start (as TensorFlow's ExponentialMovingAverage does with
    `num_updates`). Decay 0 is the model itself, copied at each update.
    """

    def update(averages: Tensors, values: Tensors, num_updates: Tensor | int) -> None:
        n = int(num_updates)
        weight = 1 - min(decay, (1 + n) / (10 + n))
        if averages[0].is_floating_point():
            torch._foreach_lerp_(averages, values, weight)
        else:  # counters, such as BatchNorm's num_batches_tracked
            torch._foreach_copy_(averages, values)

    return AveragedModel(model, multi_avg_fn=update, use_buffers=True)
