"""Sums whose bits depend neither on the order of the summands nor on how many ranks hold them.

Floating-point addition is not associative: the same gradients summed by 1, 2 and 3 ranks give
three results, and so three different models. Here every summand is rounded once to a grid shared
by all (fixed point in int64, the grid a power of two taken from the largest absolute value among
all summands), and integers are added, which is exact in any order. XGBoost's GPU histograms use
pre-rounding for the same end (dmlc/xgboost #5361).

Guarantees: for a tensor with K summands the bits of the sum are a function of the multiset of
summands. 62 - ceil(log2 K) bits below the largest summand are kept, so a float32 is rounded only
where it is smaller than the largest by a factor of 2**35 or more (K = 8). A non-finite summand
anywhere makes the whole tensor NaN on every rank.

Costs: two collectives, a MAX of one float64 per tensor and a SUM of int64: twice the bytes of a
float32 all-reduce. Memory: the summands of a rank are held until its last one is there, since the
grid needs them all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

_BITS = 62  # of int64: one for the sign, one so that K summands at the limit cannot reach 2**63
_MAX_EXPONENT = 1000  # 2.0**1000 and its inverse are float64


@dataclass
class ExactSum:
    """The sum of `num_summands` lists of tensors, spread over the ranks of the default group.

    Summand lists have equal shapes and dtypes everywhere: floating point, or integers below 2**53
    in absolute value.

    Args:
        num_summands: over all ranks; every rank states the same.
    """

    num_summands: int
    _held: list[list[Tensor]] = field(default_factory=list)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Hold one summand: kept, not copied, so not to be written to before `start`."""
        self._held.append(list(tensors))

    def start(self) -> "PendingSum":
        """Begin the reduction; collective. Every rank holds at least one summand."""
        summands, self._held = self._held, []
        limits = _shared_limits(summands)
        scales = [_scale(limit, self.num_summands) for limit in limits.tolist()]
        grid = _grid(summands, scales)
        work = dist.all_reduce(grid, op=dist.ReduceOp.SUM, async_op=True)
        assert work is not None
        return PendingSum(grid, scales, summands[0], work)


@dataclass(frozen=True)
class PendingSum:
    """A sum on its way between the ranks."""

    grid: Tensor  # [N] int64
    scales: list[float | None]  # of each tensor; None: a summand is not finite
    like: list[Tensor]
    work: dist.Work

    def wait(self) -> list[Tensor]:
        """The sums, in the shapes and dtypes of the summands."""
        self.work.wait()
        parts = self.grid.split([tensor.numel() for tensor in self.like])
        return [
            _restored(part, scale, tensor)
            for part, scale, tensor in zip(parts, self.scales, self.like, strict=True)
        ]


def _shared_limits(summands: Sequence[Sequence[Tensor]]) -> Tensor:
    """The largest absolute value of each tensor over all summands of all ranks, [T] float64.

    Infinite where a summand is not finite.
    """
    tensors = [
        tensor if tensor.is_floating_point() else tensor.double()
        for summand in summands
        for tensor in summand
    ]
    norms = torch.stack([norm.double() for norm in torch._foreach_norm(tensors, math.inf)])  # noqa: SLF001
    # A maximum need not carry a NaN from rank to rank; an infinity it does.
    norms = torch.where(norms.isfinite(), norms, math.inf)
    limits = norms.view(len(summands), -1).amax(dim=0)
    dist.all_reduce(limits, op=dist.ReduceOp.MAX)
    return limits.cpu()


def _scale(limit: float, num_summands: int) -> float | None:
    """What `num_summands` values up to `limit` are multiplied by; None: `limit` is not finite."""
    if not math.isfinite(limit):
        return None
    exponent = _BITS - (num_summands - 1).bit_length() - math.frexp(limit)[1]
    return 2.0 ** min(_MAX_EXPONENT, exponent)


def _grid(summands: Sequence[Sequence[Tensor]], scales: Sequence[float | None]) -> Tensor:
    """The sum of this rank's summands as multiples of 1 / scale, [N] int64, all tensors in one."""
    first = summands[0]
    sizes = torch.tensor([tensor.numel() for tensor in first], device=first[0].device)
    # A tensor that is not finite contributes whatever it likes: its sum is not looked at.
    factors = torch.tensor([scale or 0.0 for scale in scales], dtype=torch.float64)
    factor = factors.to(first[0].device).repeat_interleave(sizes)
    total = torch.zeros(len(factor), dtype=torch.int64, device=factor.device)
    for summand in summands:
        # Exact up to the rounding: a float32 times a power of two is a float64.
        total += (_flat(summand) * factor).round_().to(torch.int64)
    return total


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All values in one float64, [N]."""
    if len({tensor.dtype for tensor in tensors}) == 1:
        return torch.cat([tensor.reshape(-1) for tensor in tensors]).double()
    return torch.cat([tensor.reshape(-1).double() for tensor in tensors])


def _restored(part: Tensor, scale: float | None, like: Tensor) -> Tensor:
    if scale is None:
        return torch.full_like(like, math.nan)
    return (part.double() / scale).to(like.dtype).view_as(like)


class GradientSum:
    """The exact mean of the logical workers' gradients, carried by DDP.

    DDP calls the communication hook for each bucket of gradients once all of it is there, during
    the backward pass of a rank's last logical worker; the collectives of one bucket run while the
    next is computed. Since every tensor has its own grid, the division into buckets, which DDP
    changes after the first step, changes nothing.

    Args:
        model: wrapped, with gradients that are not views of buckets.
        num_workers: logical workers over all ranks.
    """

    def __init__(self, model: DistributedDataParallel, num_workers: int) -> None:
        self._parameters = [p for p in model.module.parameters() if p.requires_grad]
        self._num_workers = num_workers
        self._held: list[dict[Tensor, Tensor]] = []
        self._pending: list[tuple[list[Tensor], PendingSum]] = []
        model.register_comm_hook(None, self._start)

    def hold(self) -> None:
        """Put a logical worker's gradients aside; for each but the last of this rank."""
        self._held.append({p: p.grad for p in self._parameters if p.grad is not None})
        for parameter in self._parameters:
            parameter.grad = None

    def finish(self) -> None:
        """Replace this rank's gradients by the mean over all logical workers; collective."""
        for parameters, pending in self._pending:
            for parameter, total in zip(parameters, pending.wait(), strict=True):
                parameter.grad = total.div_(self._num_workers)
        self._pending.clear()
        self._held.clear()

    def _start(self, _: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        # DDP reads these annotations: this module must not postpone them (PEP 563).
        parameters = bucket.parameters()
        total = ExactSum(self._num_workers)
        for gradients in self._held:
            total.add([gradients[parameter] for parameter in parameters])
        # Not bucket.gradients(): those are wrongly shaped where a parameter is channels last.
        total.add([p.grad for p in parameters if p.grad is not None])
        self._pending.append((parameters, total.start()))
        # The result is taken in `finish`, on the main thread; DDP goes on with what it has.
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done
