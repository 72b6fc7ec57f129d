"""Making steps of a run again, and comparing each with what the run kept of it.

The same code as training does the steps (`trainers.prepare`, `trainers.session`), with the
params of the record, from the nearest checkpoint of the run at or before the first step, or else
from the start: of a run that has ended only those are left that `keep_every_steps` kept.
Compared are the digest of the sample ids and the bits of the loss of every step that is made, the
SHA-256 of the weights where the run took it, and after the last step every tensor of the weights
file.

Costs what training these steps costs, on one process: the number of ranks does not matter under
`reduction: exact`. Under `reduction: ddp` it does, and is in no record: start as many ranks as the
run had, `torchrun --standalone --nproc-per-node=N -m trainers verify RUN`.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pipelines.core.errors import HeadraceError
from trainers import train
from trainers.chain import Chain, Link
from trainers.checkpoint import Checkpoints, fingerprint, finished_folder, state_folder
from trainers.divergence import Undone, skipped
from trainers.environment import changes, environment
from trainers.integrity import tensor_faults
from trainers.launch import StopRequest
from trainers.prepare import prepare
from trainers.record import Run
from trainers.session import Session


@dataclass(frozen=True)
class Difference:
    """The first thing that came out otherwise."""

    step: int
    """From 0."""
    what: str
    """What differs."""
    before: str
    now: str


class Repetition:
    """Some steps of a run, to be made again. A context manager; collective.

    Args:
        run: with all its files.
        data: folder of its data.
        steps: over all epochs, from 0.

    Raises:
        HeadraceError: its params, its data and the code here do not fit each other.
    """

    def __init__(self, run: Run, data: Path, steps: range) -> None:
        self._run = run
        self._steps = steps
        self._kept = run.read_steps()
        with ExitStack() as stack:
            self.session = _session(run, data, stack)
            if run.config.result == "last":
                # Judges the weights, and changes nothing of them.
                self.session.val = None
            self.session.resume(steps.start)
            # What the run left out is left out again, whatever it was that sent it back.
            self.session.state.undone = tuple(
                Undone(step, step + 1) for step in skipped(self._kept)
            )
            self._stack = stack.pop_all()
        self.first_step = self.session.next_step
        """The step that is made first; before the first of `steps`, or that one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def difference(self) -> Difference | None:
        """Make the steps until one differs, which is told, or none is left."""
        chain = self.session.state.chain
        for step in range(self.first_step):
            if found := _compare(step, self._kept, chain):
                return found
        if self.first_step < self._steps.stop:
            for _ in self.session.steps():
                step = self.session.next_step - 1
                if found := _compare(step, self._kept, chain):
                    return found
                if step + 1 == self._steps.stop:
                    break
        return self._compare_result() if self._steps.stop == self._kept.num_steps else None

    def changes(self) -> list[str]:
        """What is recorded of the run and is otherwise here, a line each."""
        about = self._run.about
        code = changes({"code": about.code}, {"code": train.code_of(self._run.config)})
        return [*code, *changes(about.environment, environment())]

    def _compare_result(self) -> Difference | None:
        kept = self._run.read_lineage()["weights"]["tensors"]
        again = self.session.state.result()
        lines = list(tensor_faults(kept, again))
        if not lines:
            return None
        last = self._kept.num_steps - 1
        return Difference(last, "the weights file", "; ".join(lines), "other tensors come out")


def _session(run: Run, data: Path, stack: ExitStack) -> Session:
    config = run.config
    # As `train` names it: found only while data, params, code and libraries are still the run's.
    run_id = fingerprint(
        dataset_version=run.about.dataset_version,
        params=config.semantic(),
        code=train.code_of(config),
    )
    folder = state_folder(run_id)
    folder = folder if folder.is_dir() else finished_folder(folder)
    saves = stack.enter_context(Checkpoints(folder, config.num_checkpoints))
    session = prepare(config, data, stack, saves, StopRequest())
    kept, num_steps = run.about.chain["num_steps"], session.schedule.num_steps
    if kept > num_steps or (kept < num_steps and not config.patience_epochs):
        raise HeadraceError(
            "The params of the run do not make the steps that it made.",
            where=f"{run.path}: params",
            expected=f"{kept} steps",
            found=f"{num_steps} steps: {config.epochs} epochs of "
            f"{session.schedule.num_steps_per_epoch}, with batch_size {config.batch_size}",
        )
    return session


def _compare(step: int, kept: Chain, again: Chain) -> Difference | None:
    before, now = kept.link(step), again.link(step)
    if before.ids != now.ids:
        return Difference(step, "the sample ids", f"{before.ids:016x}", f"{now.ids:016x}")
    if before.loss_bits != now.loss_bits:
        return Difference(step, "the loss", _loss(before), _loss(now))
    if before.weights != now.weights:
        return Difference(step, "the weights", str(before.weights), str(now.weights))
    return None


def _loss(link: Link) -> str:
    return f"{link.loss!r} (bits {link.loss_bits[::-1].hex()})"
