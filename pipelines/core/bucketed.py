"""Stages that look at one bucket at a time: all but the looking.

Two shapes, each given a pure function of one bucket's table:

- `filter_manifest`: a stage between `clean` and `shard`. The function says which rows to drop and
  why; the rest becomes the next manifest. No sample is lost: in = kept + rejected, and the budget
  `max_rejected_fraction` holds.
- `map_shards`: a stage beside the chain. The function makes a table of each shard's rows.

Both run the function once a bucket on the machine's Dask cluster; the result depends neither on
workers nor on their order. The function must be importable, since it is sent to other processes.
A bucket whose content, params and code are as before is taken from the memo (`core.memo`).
Memory: one bucket's table a worker.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.core import budget, memo, records
from pipelines.core.errors import HeadraceError
from pipelines.core.memo import Task
from pipelines.core.report import Report
from pipelines.core.shards import pieces
from pipelines.core.stage import Job
from pipelines.core.storage import sha256_file

_INDEX = "index.arrow"

P = TypeVar("P")


class Budgeted(Protocol):
    """Params with a budget of rejected samples."""

    @property
    def max_rejected_fraction(self) -> float:
        """Share of the samples, 0..1, that may be rejected before the stage fails."""


B = TypeVar("B", bound=Budgeted)


@dataclass(frozen=True)
class Drop:
    """Rows to drop for one reason.

    Attributes:
        reason: a word such as `blurred`; it stays the same over versions, since people count by it.
        where: [num_rows], whether to drop each row.
        shown: the column whose value goes into the row's `detail`.
    """

    reason: str
    where: npt.NDArray[np.bool_]
    shown: str


def filter_manifest(job: Job[B], drops: Callable[[pa.Table, B], Sequence[Drop]]) -> Report:
    """Write `manifest/`, a file a bucket, without what is dropped, and `rejected.parquet`.

    Args:
        job: has the input `manifest`, a folder of `<bucket>.parquet` (`records.MANIFEST`).
        drops: of a bucket's rows and the params, what to drop; where several fit, the first counts.

    Raises:
        HeadraceError: there is no manifest, or the budget is exceeded.
    """
    source = job.inputs["manifest"]
    manifests = sorted(source.glob("*.parquet"))
    if not manifests:
        raise HeadraceError(
            "There is no manifest to filter.", where=str(source), fix="`dvc repro` builds it"
        )
    out = job.out / "manifest"
    write = functools.partial(_filter_bucket, drops, job.params, job.stage)
    tasks = [Task(path.stem, sha256_file(path), path) for path in manifests]
    folders = memo.build(job, write, tasks, settings=job.params, describe="buckets filtered")
    out.mkdir()
    joined = pieces.join(folders, out)

    rejected = joined.rejected.sort_by([("key", "ascending"), ("path", "ascending")])
    num_kept, num_in = joined.rows.num_rows, joined.rows.num_rows + rejected.num_rows
    reasons = budget.hold(job.stage, rejected, num_in, job.params.max_rejected_fraction)
    records.write_parquet(job.out / "rejected.parquet", rejected)
    return {
        "samples_in": num_in,
        "samples_kept": num_kept,
        "samples_rejected": rejected.num_rows,
        "rejected": reasons,
        "splits": Counter(map(str, joined.rows["split"].to_pylist())),
    }


def _filter_bucket(
    drops: Callable[[pa.Table, B], Sequence[Drop]],
    params: B,
    stage: str,
    manifest: Path,
    piece: Path,
) -> None:
    """Filter one bucket into a piece."""
    rows = records.read_parquet(manifest)
    rejected: list[dict[str, str]] = []
    is_kept = np.ones(rows.num_rows, dtype=np.bool_)
    for drop in drops(rows, params):
        _check_mask(drop, rows.num_rows, stage)
        fits = drop.where & is_kept
        is_kept &= ~fits
        rejected += [_rejection(row, drop) for row in rows.filter(pa.array(fits)).to_pylist()]
    kept = rows.filter(pa.array(is_kept))
    records.write_parquet(piece / manifest.name, kept)
    pieces.write_account(
        piece,
        rows=kept.select(["split"]).replace_schema_metadata(None),
        rejected=records.rejected_table(rejected, stage),
        counts={},
    )


def _check_mask(drop: Drop, num_rows: int, stage: str) -> None:
    """Refuse what would otherwise be broadcast, or taken for numbers."""
    if drop.where.shape != (num_rows,) or drop.where.dtype != np.bool_:
        raise HeadraceError(
            f"Stage {stage} must say of each row whether it is {drop.reason}.",
            expected=f"{num_rows} booleans",
            found=f"shape {drop.where.shape} of {drop.where.dtype}",
            fix=f"see `where` in the module of stage {stage}",
        )


def _rejection(row: dict[str, Any], drop: Drop) -> dict[str, str]:
    value = row[drop.shown]
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return {
        "key": row["key"],
        "path": "/".join(filter(None, (row["container"], row["member"]))),
        "reason": drop.reason,
        "detail": f"{drop.shown} {text}",
    }


def map_shards(job: Job[P], folder: Path, function: Callable[[pa.Table, P], pa.Table]) -> Report:
    """Write `<split>-<bucket>.parquet` for every shard of a stage that has an `index.arrow`.

    Args:
        job: the run.
        folder: the out of `decode` (the function gets a shard's images, keys and labels) or of
            `shard` (it gets the index's rows: where each image lies in the tar, its size, ...).
        function: of a shard's rows and the params, the table to write.

    Raises:
        HeadraceError: there is no index, or nothing in it.
    """
    index = folder / _INDEX
    names = map(str, records.read_ipc(index)["shard"].to_pylist()) if index.is_file() else ()
    shards = list(dict.fromkeys(names))  # In the order of the index: by split and bucket.
    if not shards:
        raise HeadraceError(
            "There is no shard to read.", where=str(index), fix="`dvc repro` builds it"
        )
    write = functools.partial(_map_shard, function, job.params, folder)
    tasks = [Task(Path(shard).stem, _content(folder, shard), shard) for shard in shards]
    folders = memo.build(job, write, tasks, settings=job.params, describe="shards")
    joined = pieces.join(folders, job.out)
    return {
        "num_shards": len(shards),
        "num_rows_read": sum(count["num_rows_read"] for count in joined.counts),
        "num_rows_written": sum(count["num_rows_written"] for count in joined.counts),
    }


def _map_shard(
    function: Callable[[pa.Table, P], pa.Table], params: P, folder: Path, shard: str, piece: Path
) -> None:
    """Apply the function to one shard's rows, into a piece."""
    rows = _rows(folder, shard)
    made = function(rows, params)
    records.write_parquet(piece / f"{Path(shard).stem}.parquet", made)
    pieces.write_account(
        piece,
        rows=pa.table({}),
        rejected=records.REJECTED.empty_table(),
        counts={"num_rows_read": rows.num_rows, "num_rows_written": made.num_rows},
    )


def _content(folder: Path, shard: str) -> str:
    """What stands for all that is read of a shard."""
    if shard.endswith(".arrow"):
        return sha256_file(folder / shard)
    return memo.digest(json.dumps(_rows(folder, shard).to_pylist()))


def _rows(folder: Path, shard: str) -> pa.Table:
    """A shard's own table; of a tar, what the index says of its samples."""
    if shard.endswith(".arrow"):
        return records.read_ipc(folder / shard)
    index = records.read_ipc(folder / _INDEX)
    return index.filter(pc.field("shard") == shard)


def images_of(rows: pa.Table) -> npt.NDArray[np.uint8]:
    """The images of a decoded shard's rows, without a copy: [n, H, W, C] uint8."""
    tensors: Any = rows["image"].combine_chunks()
    images: npt.NDArray[np.uint8] = tensors.to_numpy_ndarray()
    return images
