"""The loop: read, step, note, save, stop.

Every decision is the same on all ranks, since it rests on what all of them know after a step; only
the clock of checkpoints is rank 0's, and nothing but checkpoints depends on it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.distributed as dist

from pipelines.core.errors import HeadraceError
from trainers import optim
from trainers.chain import digest_of_ids
from trainers.checkpoint import Checkpoints
from trainers.environment import changes, environment
from trainers.launch import EX_TEMPFAIL, StopRequest
from trainers.progress import Progress
from trainers.reader.ahead import Batch
from trainers.reader.loader import Reader
from trainers.reader.order import Epoch
from trainers.state import State
from trainers.step import Outcome, Position, Trainer
from trainers.validate import validate
from trainers.weights import weights_sha256

log = logging.getLogger("headrace.train")

_MAX_WEIGHT_DIGESTS: Final = 32


@dataclass(frozen=True)
class Schedule:
    """How long to train, at which rate, and how often to save."""

    num_epochs: int
    num_steps_per_epoch: int
    warmup_fraction: float
    peak_learning_rate: float
    checkpoint_interval_s: float

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

    def takes_weights_digest(self, step: int) -> bool:
        """Whether the SHA-256 of the weights after `step`, from 0, is kept: evenly, and the last.

        A function of the run's length alone, so that every run of the same params keeps the same.
        """
        interval = -(-self.num_steps // _MAX_WEIGHT_DIGESTS)
        return (step + 1) % interval == 0 or step + 1 == self.num_steps


@dataclass
class Session:
    """One process's part in a run."""

    schedule: Schedule
    state: State
    trainer: Trainer
    train: Reader
    val: Reader | None
    saves: Checkpoints
    stop: StopRequest
    _drawn: Epoch | None = field(default=None, init=False)

    def resume(self, last_step: int | None = None) -> None:
        """Go to the newest checkpoint, where there is one; collective.

        Args:
            last_step: where not to go beyond; None: anywhere.

        Raises:
            HeadraceError: the ranks do not see the same one.
        """
        loaded = self.saves.newest(last_step)
        step = -1 if loaded is None else loaded.step
        seen = torch.tensor([step, -step], device=self.trainer.device)
        dist.all_reduce(seen, op=dist.ReduceOp.MAX)
        if seen.tolist() != [step, -step]:
            raise HeadraceError(
                "The ranks do not see the same checkpoints.",
                where=str(self.saves.folder),
                found=f"rank {dist.get_rank()} sees step {step}, another step {int(seen[0])}",
                fix="keep .state/ on a file system that all nodes share",
            )
        if loaded is None:
            return
        self.state.restore(loaded)
        log.info("resumed after step %d of %d", step, self.schedule.num_steps)
        for line in changes(loaded.meta["environment"], environment()):
            log.warning("RESUMED UNDER ANOTHER ENVIRONMENT, bits may differ: %s", line)

    def run(self) -> None:
        """Train to the end; collective.

        Raises:
            SystemExit: with EX_TEMPFAIL, on every rank, once the state is saved: a rank was asked
            to stop.
        """
        saved_at = time.monotonic()
        steps = self.steps()
        for outcome in steps:
            if outcome.is_stop_wanted and self.next_step < self.schedule.num_steps:
                steps.close()
                self._save_and_stop()
            if time.monotonic() - saved_at >= self.schedule.checkpoint_interval_s:
                self._save()
                saved_at = time.monotonic()

    def steps(self) -> Generator[Outcome, None, None]:
        """Make the steps that are left, one whenever the next is asked for; collective."""
        progress = Progress(self.schedule.num_steps, self.next_step, is_shown=dist.get_rank() == 0)
        try:
            for batch in self._read(progress):
                outcome = self._step(batch)
                progress.advance(self.train.order.plan.batch_size, outcome.loss)
                if self.state.position.epoch > batch.epoch:
                    self._end_epoch(progress)
                yield outcome
        finally:
            progress.close()

    @property
    def next_step(self) -> int:
        """The step that is made next, over all epochs, from 0."""
        position = self.state.position
        return position.epoch * self.schedule.num_steps_per_epoch + position.step

    def _read(self, progress: Progress) -> Iterator[Batch]:
        if self.next_step >= self.schedule.num_steps:
            return
        batches = self.train.batches(self.state.position, num_epochs=self.schedule.num_epochs)
        while True:
            with progress.waiting():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _step(self, batch: Batch) -> Outcome:
        state, step = self.state, self.next_step
        optim.set_learning_rate(state.optimizer, self.schedule.learning_rate(step))
        at = Position(batch.epoch, step)
        outcome = self.trainer.step(at, batch.microbatches, stop=self.stop.is_set)
        if not outcome.is_skipped:
            state.ema.update_parameters(state.model)
        self._note(batch, step, outcome)
        state.position = self.train.state_after(batch)
        return outcome

    def _note(self, batch: Batch, step: int, outcome: Outcome) -> None:
        if self._drawn is None or self._drawn.number != batch.epoch:
            self._drawn = self.train.order.draw_epoch(batch.epoch)
        ids = self._drawn.batches(batch.step, 1)  # [1, K, b]: of the whole global batch
        state, digest = self.state, None
        if self.schedule.takes_weights_digest(step):
            digest = weights_sha256(state.model.state_dict())
        state.chain.add(digest_of_ids(ids), outcome.loss, digest)
        state.history.current.add(ids.size, outcome.loss, outcome.num_correct)

    def _end_epoch(self, progress: Progress) -> None:
        scores = None
        if self.val is not None:
            recipe = self.trainer.recipe
            model = self.state.ema.module
            scores = validate(model, self.val, recipe.normalisation, recipe.precision)
        rate = self.schedule.learning_rate(self.next_step - 1)
        row = self.state.history.end_epoch(rate, scores)
        progress.end_epoch(self.state.position.epoch, self.schedule.num_epochs, row)

    def _save(self) -> None:
        if dist.get_rank() == 0:
            meta = self.state.meta(environment())
            self.saves.save(self.next_step, self.state.tensors(), meta)

    def _save_and_stop(self) -> None:
        self._save()
        self.saves.wait()
        dist.barrier()
        log.info(
            "stopped by a signal; step %d of %d is saved: run the same command to go on",
            *(self.next_step, self.schedule.num_steps),
        )
        raise SystemExit(EX_TEMPFAIL)
