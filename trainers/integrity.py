"""Whether the files of a run, and of its data, are still what the run wrote and read.

The record says most things twice: `model.safetensors` holds in its metadata what `lineage.json`
holds; that names the weights by SHA-256, whole and tensor by tensor; both hold the hash that the
rows of `steps.parquet` must give; the dataset version names the index, and the index every shard.
So a change of one file shows, and where it was made. Whoever changes all of them alike is found by
making the steps again (`trainers.repeat`).

Costs reading the weights and the shards that are asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from torch import Tensor

from pipelines.core.errors import HeadraceError
from pipelines.core.storage import sha256_file
from trainers.environment import changes
from trainers.lineage import ORIGIN
from trainers.reader.index import Index, SplitIndex, mend_command
from trainers.reader.order import Order
from trainers.record import LINEAGE, STEPS, WEIGHTS, Run
from trainers.weights import read, weights_sha256


def record_faults(run: Run) -> Iterator[str]:
    """A line for each place where the files of the run contradict each other.

    Raises:
        HeadraceError: one of them is missing or cannot be read at all.
    """
    record = run.read_lineage()
    _, tensors = read(run.path, must_be_sound=False)
    kept = record.get("weights", {})
    is_same_file = sha256_file(run.path) == kept.get("sha256")
    named = list(tensor_faults(kept.get("tensors", {}), tensors))
    yield from (f"{WEIGHTS}: {line}" for line in named)
    about = asdict(run.about)
    for name in ORIGIN:
        changed = LINEAGE if is_same_file else f"{WEIGHTS} (its metadata)"
        for line in changes({name: record.get(name)}, {name: about[name]}):
            yield f"{changed} was changed: {line}   ({LINEAGE} -> {WEIGHTS})"
            named.append(line)
    if not is_same_file and not named:
        yield f"{WEIGHTS}: its SHA-256 is not the one in {LINEAGE}, for its metadata was changed"
    yield from _step_faults(run)


def tensor_faults(kept: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """A line for each tensor that is not the one whose SHA-256 was kept under its name."""
    for name in sorted(kept.keys() | tensors.keys()):
        if name not in tensors:
            yield f"the tensor {name} is missing"
        elif weights_sha256({name: tensors[name]}) != kept.get(name):
            yield f"the tensor {name} is not the one that the run wrote"


def _step_faults(run: Run) -> Iterator[str]:
    try:
        found = run.read_steps().summary()
    except HeadraceError as error:
        yield f"{STEPS} cannot be read: {error.found}"
        return
    if found != run.about.chain:
        yield (
            f"{STEPS}: its rows are not those that the run wrote: they give {_chain(found)}, and "
            f"{WEIGHTS} says {_chain(run.about.chain)}"
        )


def _chain(summary: Mapping[str, Any]) -> str:
    return f"{summary.get('digest')} over {summary.get('num_steps')} steps"


def shards_of(order: Order, split: SplitIndex, steps: range) -> list[int]:
    """The shards of `split`, in storage order, that some steps (over all epochs, from 0) read."""
    if len(steps) >= order.num_steps:
        return list(range(len(split.names)))
    needed: set[int] = set()
    for epoch, group in itertools.groupby(steps, lambda step: step // order.num_steps):
        first, *others = group
        ids = order.draw_epoch(epoch).batches(first % order.num_steps, 1 + len(others))
        numbers = np.searchsorted(split.first_ids, ids.reshape(-1), side="right") - 1
        needed.update(np.unique(numbers).tolist())
    return sorted(needed)


def shard_faults(index: Index, split: SplitIndex, numbers: Iterable[int]) -> Iterator[str]:
    """A line for each of these shards of `split` that is not the file that the index names."""
    table = index.table
    rows = table.filter(pc.equal(table["split"], pa.scalar(split.split))).sort_by("bucket")
    named = rows["sha256"].to_pylist()
    for number in numbers:
        path = split.path(number)
        if not path.is_file():
            yield f"{path} is missing   (mend: dvc checkout)"
        elif sha256_file(path) != named[number]:
            yield (
                f"{path} is not the file that the index names: its SHA-256 is {sha256_file(path)}, "
                f"not {named[number]}   (mend: {mend_command(path)})"
            )
