"""Randomness as a function of a counter, never of a state that was carried along.

Every draw is keyed by what it is for (seed, epoch, sample id, operation; or seed, step, logical
worker), so it does not depend on which rank, thread or batch made it, nor on what was drawn
before: a resumed run draws what the undisturbed run would have drawn.

`key` hashes a few plain values into 63 bits, for seeding torch's own generators (initial weights,
dropout). `draw` mixes a key with a tensor of ids on whatever device the tensor is (augmentation):
SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), which
is integer arithmetic only and hence the same on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_GOLDEN: Final = 0x9E3779B97F4A7C15 - (1 << 64)
_STREAM: Final = 0xD1B54A32D192ED03  # odd, so that multiples of it do not repeat
_MIX_1: Final = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2: Final = 0x94D049BB133111EB - (1 << 64)


def key(*parts: int | str) -> int:
    """63 bits that depend on all `parts` and on their order."""
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def draw(key: int, ids: Tensor, uppers: Sequence[int]) -> Tensor:
    """For each id and each of `uppers` an integer in [0, upper), all but uniform.

    The bias is below upper / 2**31.

    Args:
        key: from `key`; another operation, epoch or seed needs another key.
        ids: [N] int64, any device.
        uppers: M of them, each 1 .. 2**31.

    Returns: [M, N] int64 on the device of `ids`.
    """
    streams = torch.tensor([_signed(key + m * _STREAM) for m in range(len(uppers))])
    keys = streams.to(ids.device)[:, None]  # [M, 1]
    mixed = _mix(_mix(ids * _GOLDEN + keys) ^ keys)
    return (_shift(mixed, 33) * torch.tensor(uppers, device=ids.device)[:, None]) >> 31


def seed_torch(key: int, device: torch.device) -> None:
    """Key the default generators, from which dropout and initial weights are drawn."""
    # Not torch.manual_seed: it also notes a call, with its stack, for each kind of device that was
    # never used.
    torch.default_generator.manual_seed(key)
    if device.type == "cuda":
        torch.cuda.manual_seed(key)


def _signed(value: int) -> int:
    """The low 64 bits as an int64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _mix(values: Tensor) -> Tensor:
    """SplitMix64's finaliser, [N] int64, wrapping."""
    values = (values ^ _shift(values, 30)) * _MIX_1
    values = (values ^ _shift(values, 27)) * _MIX_2
    return values ^ _shift(values, 31)


def _shift(values: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: int64 has only the arithmetic one."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
