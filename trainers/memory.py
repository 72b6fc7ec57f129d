"""Out of memory: what was held and what to change; and a microbatch that fits by itself.

`num_accumulation_steps: auto` tries a forward and a backward pass before the run, with as much else
allocated as the run will hold, and halves the microbatch until it fits on every rank. The number
that is found stands in the record in place of `auto`, and the run is in every way one with that
number: so a machine with less memory may make it another run. The batch, its samples and their
augmentation stay the same; the bits do not, since kernels then add up over fewer samples at a time,
and BatchNorm's statistics are those of the smaller microbatch. With equal numbers they are equal.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from pipelines.core.errors import HeadraceError
from trainers import models, numerics

if TYPE_CHECKING:
    from trainers import train
    from trainers.reader.index import Index
    from trainers.state import State

_MIB: Final = 1 << 20
_CPU_MESSAGE: Final = "can't allocate memory"
_OPTIMIZER_COPIES: Final = {"sgd": 1, "adamw": 2}
_OTHER_COPIES: Final = 4  # the average, DDP's buckets, and the sum in int64


def fitted(config: train.Params, index: Index) -> train.Params:
    """`config` with a number in place of `num_accumulation_steps: auto`; collective.

    Raises:
        HeadraceError: not even one sample at a time fits.
    """
    if config.num_accumulation_steps != "auto":
        return config
    device = numerics.configure(config.precision, config.num_threads)
    model = models.build(config.model, index.shape, len(index.labels)).to(device)
    reserve = torch.empty(_reserve_bytes(config, model), dtype=torch.uint8, device=device)
    num_samples = max(1, config.batch_size // config.num_logical_workers)
    num = torch.tensor(_trial(config, index, model, num_samples), device=device)
    del reserve
    dist.all_reduce(num, op=dist.ReduceOp.MAX)
    return dataclasses.replace(config, num_accumulation_steps=int(num))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch says it in two ways."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and _CPU_MESSAGE in str(error)
    )


@contextmanager
def told(state: State, num_workers: int, num_samples: int) -> Iterator[None]:
    """Tell what was held where the memory does not suffice for what is inside.

    Args:
        state: of the run.
        num_workers: logical workers of this rank, whose gradients are held.
        num_samples: of a microbatch.

    Raises:
        HeadraceError: instead of torch's own error.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise _exhausted(state, num_workers, num_samples, error) from error


def _trial(config: train.Params, index: Index, model: nn.Module, num_samples: int) -> int:
    """The least number of parts, doubled from 1, into which a share must be cut on this rank."""
    num = 1
    while num_samples % num == 0:
        try:
            _pass(config, index, model, num_samples // num)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        else:
            return num
        finally:
            model.zero_grad()
            gc.collect()
            torch.cuda.empty_cache()
        num *= 2
    raise HeadraceError(
        "The model does not fit into memory, however small the microbatch.",
        where="params.yaml: train.num_accumulation_steps",
        expected=f"room for a microbatch of {num_samples * 2 // num} samples at least",
        found=f"batch_size {config.batch_size} over {config.num_logical_workers} logical workers",
        fix="a smaller model or precision: bf16; a batch_size that halves more often, as 2**n does",
    )


def _pass(config: train.Params, index: Index, model: nn.Module, num_samples: int) -> None:
    device = next(model.parameters()).device
    height, width, channels = index.shape
    images = torch.zeros(num_samples, height, width, channels, device=device).permute(0, 3, 1, 2)
    with numerics.autocast(config.precision, device):
        logits = model(images)
    labels = torch.zeros(num_samples, dtype=torch.int64, device=device)
    functional.cross_entropy(logits.float(), labels).backward()


def _reserve_bytes(config: train.Params, model: nn.Module) -> int:
    """What the run will hold beside weights, one gradient and activations."""
    num_workers = -(-config.num_logical_workers // dist.get_world_size())
    copies = num_workers - 1 + _OPTIMIZER_COPIES[config.optimizer] + _OTHER_COPIES
    return copies * _num_bytes(model.parameters())


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _exhausted(
    state: State, num_workers: int, num_samples: int, error: RuntimeError
) -> HeadraceError:
    weights = _num_bytes(state.model.state_dict().values())
    entries = state.optimizer.state_dict()["state"].values()
    held = {
        "weights": weights,
        "their average": weights,
        f"gradients of {num_workers} logical workers": num_workers
        * _num_bytes(p for p in state.model.parameters() if p.requires_grad),
        "optimizer": sum(
            _num_bytes(value for value in entry.values() if isinstance(value, Tensor))
            for entry in entries
        ),
    }
    text = ", ".join(f"{name} {size / _MIB:,.1f} MiB" for name, size in held.items())
    return HeadraceError(
        "The memory does not suffice for a step.",
        where=f"a microbatch of {num_samples} samples on {next(state.model.parameters()).device}",
        found=f"{text}; the rest is what forward passes keep for backward ones. torch says: "
        f"{str(error).splitlines()[0]}",
        fix="train.num_accumulation_steps: auto (or twice what it is), which halves the "
        "microbatch; less batch_size; precision: bf16; more ranks",
    )
