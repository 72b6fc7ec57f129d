"""The loop: read, step, note, save, stop.

Every decision is the same on all ranks, since it rests on what all of them know after a step; only
the clock of checkpoints is rank 0's, and nothing but checkpoints depends on it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist

from pipelines.core.errors import HeadraceError
from trainers import memory, optim, watchdog
from trainers.chain import digest_of_ids
from trainers.checkpoint import Checkpoints, Loaded
from trainers.divergence import is_undone, left_out, num_skipped_in_row, rollback, target
from trainers.environment import changes, environment
from trainers.launch import EX_TEMPFAIL, StopRequest
from trainers.progress import Progress
from trainers.reader.ahead import Batch
from trainers.reader.loader import Reader
from trainers.reader.order import Epoch
from trainers.schedule import Schedule
from trainers.state import State
from trainers.step import Outcome, Position, Trainer
from trainers.validate import validate
from trainers.weights import host_copy, weights_sha256

log = logging.getLogger("headrace.train")

_NOT_MADE: Final = Outcome(math.nan, 0, is_skipped=True, is_finite=False, is_stop_wanted=False)


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
    fresh: Callable[[], State]
    """Makes the state that the run began with."""
    _drawn: Epoch | None = field(default=None, init=False)

    def resume(self, last_step: int | None = None) -> None:
        """Go to the newest checkpoint, where there is one; collective.

        Args:
            last_step: where not to go beyond; None: anywhere.

        Raises:
            HeadraceError: the ranks do not see the same one.
        """
        loaded = self._newest(last_step)
        if loaded is None:
            return
        self.state.restore(loaded)
        log.info("resumed after step %d of %d", loaded.step, self.schedule.num_steps)
        for line in changes(loaded.meta["environment"], environment()):
            log.warning("RESUMED UNDER ANOTHER ENVIRONMENT, bits may differ: %s", line)

    def _newest(self, last_step: int | None) -> Loaded | None:
        watchdog.at("the all_reduce that agrees on a checkpoint")
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
        return loaded

    def run(self, after_step: Callable[[], None]) -> None:
        """Train to the end, calling `after_step` after each step; collective.

        Raises:
            SystemExit: with EX_TEMPFAIL, once the state is saved: a rank was asked to stop.
        """
        saved_at = time.monotonic()
        steps = self.steps()
        for outcome in steps:
            after_step()
            if outcome.is_stop_wanted and not self.is_over:
                steps.close()
                self._save_and_stop()
            if self._is_save_due(time.monotonic() - saved_at):
                self._save()
                saved_at = time.monotonic()

    def _is_save_due(self, since_s: float) -> bool:
        """Whether to save now; only for every step, or chosen ones, a step waits for the disk."""
        every, interval_s = self.saves.keep_every, self.schedule.checkpoint_interval_s
        is_time = since_s >= interval_s and (interval_s == 0 or not self.saves.is_busy)
        return is_time or (every > 0 and self.next_step % every == 0)

    def steps(self) -> Generator[Outcome, None, None]:
        """Make the steps that are left, one whenever the next is asked for; collective."""
        progress = Progress(self.schedule.num_steps, self.next_step, is_shown=dist.get_rank() == 0)
        try:
            while not self.is_over:
                yield from self._steps_to_rollback(progress)
        finally:
            progress.close()

    def _steps_to_rollback(self, progress: Progress) -> Generator[Outcome, None, None]:
        for batch in self._read(progress):
            outcome = self._step(batch)
            progress.advance(self.train.order.plan.batch_size, outcome.loss)
            # Before anybody saves: what is decided must not depend on where a run was killed.
            has_gone_back = not outcome.is_finite and self._roll_back()
            if has_gone_back:
                progress.go_back(self.next_step)
            elif self.state.position.epoch > batch.epoch:
                self._end_epoch(progress)
            yield outcome
            if has_gone_back or self.is_over:
                return

    @property
    def next_step(self) -> int:
        """The step that is made next, over all epochs, from 0."""
        position = self.state.position
        return position.epoch * self.schedule.num_steps_per_epoch + position.step

    @property
    def is_over(self) -> bool:
        """Whether there is no step left to make."""
        history = self.state.history
        return self.next_step >= self.schedule.num_steps or self.schedule.is_out_of_patience(
            history.best_epoch, len(history.epochs)
        )

    def left_out(self) -> dict[str, Any]:
        """For the record, see `divergence.left_out`."""
        return left_out(self.state.chain, self.state.undone, self._keys)

    def _keys(self, step: int) -> list[str]:
        epoch, step_of_epoch = divmod(step, self.schedule.num_steps_per_epoch)
        ids = self.train.order.draw_epoch(epoch).batches(step_of_epoch, 1)
        return self.train.keys(torch.from_numpy(ids.reshape(-1)))

    def _read(self, progress: Progress) -> Iterator[Batch]:
        batches = self.train.batches(self.state.position, num_epochs=self.schedule.num_epochs)
        while True:
            watchdog.at(f"step {self.next_step}, waiting for data")
            with progress.waiting():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _step(self, batch: Batch) -> Outcome:
        state, step = self.state, self.next_step
        outcome = _NOT_MADE
        if not is_undone(step, state.undone):
            optim.set_learning_rate(state.optimizer, self.schedule.learning_rate(step))
            at = Position(batch.epoch, step)
            num_samples = batch.microbatches[0].images.shape[0]
            num_samples //= self.trainer.recipe.num_accumulation_steps
            with memory.told(state, len(batch.microbatches), num_samples):
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
        if not outcome.is_finite:
            state.chain.add(digest_of_ids(ids), math.nan)
            return
        if self.schedule.takes_weights_digest(step):
            digest = weights_sha256(state.model.state_dict())
        state.chain.add(digest_of_ids(ids), outcome.loss, digest)
        state.history.current.add(ids.size, outcome.loss, outcome.num_correct)

    def _roll_back(self) -> bool:
        """Go back where the budget of skipped steps is used up; collective."""
        state, last = self.state, self.next_step - 1
        if is_undone(last, state.undone):
            return False
        log.warning("STEP %d WAS SKIPPED: its loss or gradient is not finite", last)
        if (span := rollback(state.chain, state.undone, self.schedule.budget)) is None:
            return False
        undone = (*state.undone, span)
        self.saves.wait()
        dist.barrier()
        loaded = self._newest(span.first) or self._begun()
        state.restore(loaded)
        state.undone = undone
        log.warning(
            "WENT BACK to step %d, from which steps %d to %d are left out",
            *(loaded.step, span.first, span.end - 1),
        )
        return True

    def _end_epoch(self, progress: Progress) -> None:
        scores = None
        if self.val is not None:
            watchdog.at(f"step {self.next_step}, the validation before it with its all_reduce")
            recipe = self.trainer.recipe
            model = self.state.ema.module
            scores = validate(model, self.val, recipe.normalisation, recipe.precision)
        rate = self.schedule.learning_rate(self.next_step - 1)
        history = self.state.history
        row = history.end_epoch(rate, scores)
        if self.schedule.keeps_best and history.best_epoch == len(history.epochs) - 1:
            self.state.keep_best()
        progress.end_epoch(self.state.position.epoch, self.schedule.num_epochs, row)

    def _begun(self) -> Loaded:
        begun = self.fresh()
        return Loaded(0, host_copy(begun.tensors()), begun.meta({}))

    def _save(self) -> None:
        if dist.get_rank() == 0:
            meta = self.state.meta(environment())
            state, step = self.state, self.next_step
            first_bad = step - num_skipped_in_row(state.chain, state.undone)
            keep = target(first_bad, state.undone)
            self.saves.save(step, state.tensors(), meta, keep_up_to=keep)

    def _save_and_stop(self) -> None:
        self._save()
        self.saves.wait()
        dist.barrier()
        log.info(
            "stopped by a signal; step %d of %d is saved: run the same command to go on",
            *(self.next_step, self.schedule.num_steps),
        )
        raise SystemExit(EX_TEMPFAIL)
