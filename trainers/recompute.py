"""Gradient checkpointing: forget what a block computed, and compute it again to go backward.

A block is a direct child of the model where that is an `nn.Sequential`, and of every
`nn.ModuleList` in it. What is kept is the input of each block; the price is a second forward pass.
Names of tensors stay as they are. The bits do too: random numbers are drawn again as they were, and
buffers (BatchNorm's statistics), which the second pass would change once more, are put back by the
step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from pipelines.core.errors import HeadraceError


def recompute_blocks(model: nn.Module) -> None:
    """Have each block of `model` computed twice and kept never.

    Raises:
        HeadraceError: it has no blocks.
    """
    blocks = [block for block in _blocks(model) if any(True for _ in block.parameters())]
    if not blocks:
        raise HeadraceError(
            "The model has no blocks to compute again.",
            where="params.yaml: train.gradient_checkpointing",
            expected="a model that is an nn.Sequential, or has an nn.ModuleList",
            found=f"{type(model).__name__} of {', '.join(dict(model.named_children()))}",
            fix="gradient_checkpointing: false",
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    if isinstance(model, nn.Sequential):
        yield from model
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            yield from module
