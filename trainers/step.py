"""One optimizer step over K logical workers, with the same bits on any number of ranks.

A global batch is K shares of fixed shape, one a logical worker. A rank does its workers' shares
one after another; whatever could tell which rank did a share, or after which other one, is taken
away:
- random numbers (dropout) are keyed by (seed, step, logical worker, microbatch);
- each worker starts from the buffers as they stood before the step (BatchNorm's running
  statistics), and the step ends with their mean over the workers; the batch statistics themselves
  are those of a microbatch;
- gradients, buffers, losses and counts are summed exactly (`trainers.reduce`).
Kernels see the same shapes everywhere, so that their own order of additions stays the same.

A worker may split its share into several microbatches to save memory (accumulation): these add up
in float32, in their order, which is the same on any rank.

Costs over plain DDP: the int64 sum of gradients (twice the bytes) and one small collective for the
rest; memory for one more copy of the gradients for each of the rank's workers. `reduction: ddp`
spares the sum of gradients and leaves it to DDP: equal bits then need an equal number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from pipelines.core.errors import HeadraceError
from trainers import mix, numerics, rng, watchdog
from trainers.augment import Augmentation
from trainers.mix import Mix, Mixed
from trainers.normalise import Normalisation
from trainers.numerics import Precision
from trainers.operations import Operations
from trainers.reader.slots import Microbatch
from trainers.reduce import ExactSum, GradientSum

_MIN_LOSS_SCALE = 1.0


class Position(NamedTuple):
    """Where a run stands: the step that is about to be made."""

    epoch: int
    step: int  # over all epochs, from 0


class Outcome(NamedTuple):
    """What a step came to, equal on every rank."""

    loss: float  # mean over the global batch
    num_correct: int
    is_skipped: bool  # nothing was changed, but for fp16's loss scale where that was too high
    is_finite: bool  # False: skipped for another reason than the loss scale
    is_stop_wanted: bool  # by any rank


@dataclass(frozen=True)
class Recipe:
    """What a step does, as `train:` in params.yaml says."""

    seed: int
    num_logical_workers: int
    num_accumulation_steps: int
    precision: Precision
    reduction: Literal["exact", "ddp"]
    label_smoothing: float
    max_gradient_norm: float
    recomputes: bool
    compiles: bool
    augmentation: Augmentation
    operations: Operations
    mix: Mix
    normalisation: Normalisation


class Trainer:
    """Makes steps.

    Args:
        model: on its device; the same weights on every rank.
        optimizer: over the parameters of `model`.
        scaler: enabled for fp16 only.
        recipe: the same on every rank.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        recipe: Recipe,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scaler = scaler
        self.recipe = recipe
        self.device = next(model.parameters()).device
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._buffers = list(model.buffers())
        if recipe.compiles:
            model.compile()
        # The buffers are ours to keep equal: DDP would copy those of rank 0 over the others'.
        self._ddp = DistributedDataParallel(model, forward_sync_buffers=False)
        self._sum: GradientSum | None = None
        if recipe.reduction == "exact":
            self._sum = GradientSum(self._ddp, recipe.num_logical_workers)

    def step(self, at: Position, shares: Sequence[Microbatch], *, stop: bool) -> Outcome:
        """Make one step; collective.

        Args:
            at: for the keys of random numbers.
            shares: of this rank's logical workers, at least one.
            stop: this rank was asked to stop.

        Raises:
            HeadraceError: on every rank: a parameter has no gradient.
        """
        watchdog.at(f"step {at.step}, forward and backward with the all_reduce of gradients")
        before = [buffer.clone() for buffer in self._buffers]
        sums = ExactSum(self.recipe.num_logical_workers)
        self.optimizer.zero_grad()
        for index, (share, images) in enumerate(
            zip(shares, self._augmented(at, shares), strict=True)
        ):
            if index:
                self._restore(before)
                if self._sum:
                    self._sum.hold()
            is_last = index == len(shares) - 1
            loss, correct = self._run_share(at, share, images, is_last=is_last)
            flag = torch.tensor(int(stop and index == 0), device=self.device)
            sums.add([*(buffer.clone() for buffer in self._buffers), loss, correct, flag])
        self._require_gradients(at)
        if self._sum:
            self._sum.finish()
        watchdog.at(f"step {at.step}, the all_reduce of losses and buffers")
        *buffers, loss, correct, stops = sums.start().wait()
        mean_loss = float(loss) / self.recipe.num_logical_workers
        is_applied, is_finite = self._apply(mean_loss)
        self._restore([self._mean(total) for total in buffers] if is_applied else before)
        return Outcome(mean_loss, int(correct), not is_applied, is_finite, int(stops) > 0)

    def _augmented(self, at: Position, shares: Sequence[Microbatch]) -> Sequence[Tensor]:
        """The images of each share, augmented at once: each depends on its sample id alone."""
        images = torch.cat([share.images for share in shares])
        ids = torch.cat([share.ids for share in shares])
        images = self.recipe.augmentation(images, ids, at.epoch)
        return self.recipe.operations(images, ids, at.epoch).chunk(len(shares))

    def _run_share(
        self, at: Position, share: Microbatch, images: Tensor, *, is_last: bool
    ) -> tuple[Tensor, Tensor]:
        """Forward and backward of one logical worker: its mean loss (float64), its hits."""
        recipe = self.recipe
        num = recipe.num_accumulation_steps
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        num_correct = torch.zeros((), dtype=torch.int64, device=self.device)
        mixed = None
        if recipe.mix.is_on:
            mixed = recipe.mix(images, share.labels, share.ids, at.epoch)
            images = mixed.images
        parts = zip(images.chunk(num), share.labels.chunk(num), strict=True)
        for index, (part, labels) in enumerate(parts):
            key = rng.key(recipe.seed, "step", at.step, share.logical_worker, index)
            rng.seed_torch(key, self.device)
            is_synced = is_last and index == num - 1
            with nullcontext() if is_synced else self._ddp.no_sync():
                with numerics.autocast(recipe.precision, self.device):
                    logits = self._ddp(recipe.normalisation.apply(part))
                loss = self._loss(logits.float(), labels, mixed, index)
                after = [it.clone() for it in self._buffers] if recipe.recomputes else None
                self.scaler.scale(loss * self._weight()).backward()
                if after:
                    self._restore(after)
            loss_sum += loss.detach().double() / num
            num_correct += (logits.detach().argmax(dim=1) == labels).sum()
        return loss_sum, num_correct

    def _loss(self, logits: Tensor, labels: Tensor, mixed: Mixed | None, index: int) -> Tensor:
        smoothing = self.recipe.label_smoothing
        if mixed is None:
            return functional.cross_entropy(logits, labels, label_smoothing=smoothing)
        num = self.recipe.num_accumulation_steps
        partners, shares = mixed.partners.chunk(num)[index], mixed.shares.chunk(num)[index]
        return mix.cross_entropy(logits, labels, partners, shares, smoothing)

    def _weight(self) -> float:
        """What a microbatch's mean loss counts, so that gradients become the global mean."""
        if self._sum:  # which divides by the number of workers itself
            return 1 / self.recipe.num_accumulation_steps
        num = self.recipe.num_accumulation_steps * self.recipe.num_logical_workers
        return dist.get_world_size() / num  # DDP divides by the number of ranks

    def _apply(self, loss: float) -> tuple[bool, bool]:
        """Clip and update; whether that was done, and whether all is as finite as it can be.

        An infinite gradient of a finite loss is fp16's doing, as long as its scale can be lowered.
        """
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        is_applied = math.isfinite(loss) and math.isfinite(norm)
        is_overflow = math.isfinite(loss) and not is_applied and self._can_lower_scale()
        if is_applied and self.recipe.max_gradient_norm:
            nn.utils.clip_grads_with_norm_(self._parameters, self.recipe.max_gradient_norm, norm)
        if is_applied:
            self.scaler.step(self.optimizer)
        self.scaler.update(None if is_applied or is_overflow else self.scaler.get_scale())
        return is_applied, is_applied or is_overflow

    def _can_lower_scale(self) -> bool:
        return self.scaler.is_enabled() and self.scaler.get_scale() > _MIN_LOSS_SCALE

    def _mean(self, total: Tensor) -> Tensor:
        if total.is_floating_point():
            return total / self.recipe.num_logical_workers
        # Whole numbers, such as BatchNorm's count of batches, are equal on all workers.
        return total // self.recipe.num_logical_workers

    def _restore(self, values: Sequence[Tensor]) -> None:
        if self._buffers:
            torch._foreach_copy_(self._buffers, list(values))

    def _require_gradients(self, at: Position) -> None:
        unused = [
            name
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        if unused:
            raise HeadraceError(
                "The loss does not depend on some parameters of the model.",
                where=f"step {at.step}",
                expected="every parameter with requires_grad to take part in each forward pass",
                found=", ".join(unused),
                fix="use them in forward(), remove them, or set requires_grad to False",
            )
