"""List the samples of any step of a run, from its lineage and the index of its data.

The order of samples is a function of the data's version and the params, which the weights file
holds, so nothing has to have been written down while the run read them. Where `steps.parquet` lies
beside the weights, the answer is checked against the digest of what the run did read.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.core.errors import HeadraceError
from trainers.chain import digest_of_ids
from trainers.prepare import training_plan
from trainers.reader.order import Order
from trainers.reader.shards import Shards
from trainers.record import STEPS, Run, find_data, open_run


@dataclass(frozen=True)
class Replayed:
    """The samples of one step."""

    dataset_version: str
    step: int
    """Over all epochs, from 0."""
    epoch: int
    """From 0."""
    step_of_epoch: int
    is_checked: bool
    """Whether the run's own record says the same."""
    workers: list[list[str]]
    """Keys, by logical worker."""


def main(argv: Sequence[str]) -> int:
    """Print the samples of the step that `argv` names."""
    parser = argparse.ArgumentParser("python -m trainers replay", description=__doc__)
    parser.add_argument(
        "run", type=Path, nargs="?", default=Path("runs/train"), help="or its weights file"
    )
    parser.add_argument("--step", type=int, required=True, help="over all epochs, from 0")
    parser.add_argument("--data", type=Path, help="folder of the decoded data")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    replayed = replay(open_run(arguments.run), arguments.data, arguments.step)
    if arguments.json:
        print(json.dumps(asdict(replayed), ensure_ascii=False))
        return 0
    print(
        f"step {replayed.step}: step {replayed.step_of_epoch} of epoch {replayed.epoch}, "
        f"dataset version {replayed.dataset_version}"
        f"{', as steps.parquet says' if replayed.is_checked else ''}"
    )
    for worker, keys in enumerate(replayed.workers):
        print(f"logical worker {worker}: {' '.join(keys)}")
    return 0


def replay(run: Run, data: Path | None, step: int) -> Replayed:
    """The samples of `step`, from 0.

    Raises:
        HeadraceError: the run has no such step, its data are not at hand, or it read others.
    """
    index = find_data(run, data)
    shards = Shards(index, "train", 1)
    plan = training_plan(run.config, index)
    order = Order(index.version, "train", shards.split.num_rows, plan)
    num_steps = run.about.chain["num_steps"]  # fewer than the params say, if it lost patience
    if not 0 <= step < num_steps:
        raise HeadraceError(
            "The run has no such step.",
            where=str(run.path),
            expected=f"0 to {num_steps - 1}: {run.config.epochs} epochs of {order.num_steps} steps",
            found=str(step),
        )
    epoch, step_of_epoch = divmod(step, order.num_steps)
    ids = order.draw_epoch(epoch).batches(step_of_epoch, 1)  # [1, K, b]
    is_checked = _check(run, step, digest_of_ids(ids))
    workers = [shards.keys(row) for row in ids[0]]
    shards.close()
    return Replayed(index.version, step, epoch, step_of_epoch, is_checked, workers)


def _check(run: Run, step: int, digest: int) -> bool:
    """Compare with what the run wrote down, where that is at hand."""
    path = run.folder / STEPS
    if not path.is_file():
        return False
    chain = run.read_steps()
    if chain.summary() != run.about.chain:  # of another run
        return False
    if chain.link(step).ids != digest:
        raise HeadraceError(
            "The run read other samples in this step than its params and data say.",
            where=f"{path}: step {step}",
            expected=f"digest of sample ids {digest:016x}",
            found=f"{chain.link(step).ids:016x}",
            fix=f"python -m trainers verify {run.folder}   (says what has changed)",
        )
    return True
