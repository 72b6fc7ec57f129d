"""How long a run is, and what happens at which of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainers import optim
from trainers.divergence import Budget

_MAX_WEIGHT_DIGESTS: Final = 32


@dataclass(frozen=True)
class Schedule:
    """How long to train, at which rate, and how often to save."""

    num_epochs: int
    num_steps_per_epoch: int
    warmup_fraction: float
    peak_learning_rate: float
    checkpoint_interval_s: float
    budget: Budget
    patience_epochs: int
    keeps_best: bool

    @property
    def num_steps(self) -> int:
        """Of the whole run."""
        return self.num_epochs * self.num_steps_per_epoch

    def learning_rate(self, step: int) -> float:
        """The rate of `step`, from 0."""
        return optim.learning_rate(
            step,
            num_steps=self.num_steps,
            num_warmup_steps=round(self.warmup_fraction * self.num_steps),
            peak=self.peak_learning_rate,
        )

    def is_out_of_patience(self, best_epoch: int, num_epochs: int) -> bool:
        """Whether to end after `num_epochs`, of which `best_epoch` (from 0) was the best."""
        return 0 < self.patience_epochs < num_epochs - best_epoch

    def takes_weights_digest(self, step: int) -> bool:
        """Whether the SHA-256 of the weights after `step`, from 0, is kept: evenly, and the last.

        A function of the run's length alone, so that every run of the same params keeps the same.
        """
        interval = -(-self.num_steps // _MAX_WEIGHT_DIGESTS)
        return (step + 1) % interval == 0 or step + 1 == self.num_steps
