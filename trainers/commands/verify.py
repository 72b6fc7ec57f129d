"""Make the steps of a run again, and say whether they are equal, or which is not and why.

First the files: do those of the run agree with each other, are the shards those of its dataset
version? A change is told with its place, and nothing is trained. Then the steps, with the run's own
params: by default all of them, or those of --steps A:B (from 0, without B), from the run's nearest
checkpoint at or before A where one was kept, and else from the first step. Exits with 1 where
anything differs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from pipelines.core.errors import HeadraceError
from trainers.integrity import record_faults, shard_faults, shards_of
from trainers.launch import process_group
from trainers.record import Run, find_data, open_run
from trainers.repeat import Difference, Repetition

_UNEXPLAINED = (
    "nothing that is recorded: data, code, packages, threads, CPU, GPU and variables are the run's",
    "so its files were changed all alike (params, say), or one of the two machines computed wrong",
)


def main(argv: Sequence[str]) -> int:
    """Verify the run that `argv` names; 0 where all is equal."""
    parser = argparse.ArgumentParser("python -m trainers verify", description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/train"))
    parser.add_argument("--steps", metavar="A:B", default=":", help="default: all")
    parser.add_argument("--data", type=Path, help="folder of the decoded data")
    arguments = parser.parse_args(argv)
    run = open_run(arguments.run)
    with _ranks():
        if not _tell("record", record_faults(run), "its files agree with each other"):
            return 1
        steps = steps_of(arguments.steps, run.about.chain["num_steps"])
        return _verify(run, arguments.data, steps)


def steps_of(text: str, num_steps: int) -> range:
    """The steps that `A:B` names; either may be left out.

    Raises:
        HeadraceError: they are none, or not of the run.
    """
    first, _, end = text.partition(":")
    try:
        steps = range(int(first or 0), int(end or num_steps))
    except ValueError:
        steps = range(0)
    if not steps or steps.start < 0 or steps.stop > num_steps or ":" not in text:
        raise HeadraceError(
            "These are no steps of the run.",
            where="--steps",
            expected=f"A:B with 0 <= A < B <= {num_steps}",
            found=text,
        )
    return steps


def _verify(run: Run, folder: Path | None, steps: range) -> int:
    index = find_data(run, folder)
    split = index.split("train")
    with Repetition(run, index.path.parent, steps) as repetition:
        made = range(repetition.first_step, steps.stop)
        numbers = shards_of(repetition.session.train.order, split, made)
        whole = f"{len(numbers)} shards in {split.folder} are those of version {index.version}"
        if not _tell("data", shard_faults(index, split, numbers), whole):
            return 1
        changes = repetition.changes()
        _tell("changed", changes, "nothing: code and environment are the run's")
        num_steps = run.about.chain["num_steps"]
        _say("steps", f"making {made.start}:{made.stop} of {num_steps} again")
        difference = repetition.difference()
    if difference is None:
        _say("EQUAL", _equal(made, num_steps))
        return 0
    _tell("DIFFERS", _lines(difference))
    causes = [*changes, *_ranks_matter(run)]
    _tell("because", [f"one of these has changed: {line}" for line in causes] or _UNEXPLAINED)
    return 1


def _equal(made: range, num_steps: int) -> str:
    text = f"sample ids, losses and weights of the {len(made)} steps"
    return f"{text}, and every tensor of the weights file" if made.stop == num_steps else text


def _lines(difference: Difference) -> Iterator[str]:
    yield f"first in step {difference.step} (from 0), in {difference.what}"
    yield f"the run had {difference.before}"
    yield f"now it is   {difference.now}"


def _ranks_matter(run: Run) -> Iterator[str]:
    if run.about.params["reduction"] == "ddp":
        yield (
            f"the number of ranks, now {dist.get_world_size()}: under reduction ddp it changes "
            "bits, and no record has it. `torchrun --standalone --nproc-per-node=N -m trainers "
            "verify` makes the steps on as many as the run had"
        )


def _tell(name: str, lines: Iterable[str], otherwise: str = "") -> bool:
    """Say the lines as they come, or else `otherwise`; True where there were none."""
    is_first = True
    for line in lines:
        _say(name if is_first else "", line)
        is_first = False
    if is_first and otherwise:
        _say(name, otherwise)
    return is_first


def _say(name: str, text: str) -> None:
    if dist.get_rank() == 0:
        print(f"{name:<8} {text}", flush=True)


@contextmanager
def _ranks() -> Iterator[None]:
    """Be the only rank, or under torchrun one of several."""
    alone = (dist.HashStore(), 0, 1)
    with process_group(*(next(dist.rendezvous("env://")) if "RANK" in os.environ else alone)):
        yield
