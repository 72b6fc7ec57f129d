"""Stage decode: the images of the tars as pixels of one shape, for a trainer to map into memory.

DALI decodes, applies the EXIF orientation and resizes (`core.images.decoder` says what becomes of
colours, alpha and 16 bits, `core.shards.decoded` what is written). Shards are decoded in parallel;
each image's bytes are first checked against the CRC-32C in the index of the tars.

An image that cannot be decoded is a row of `rejected.parquet`; the others of its shard are
unharmed.

A tar that is as before has its shard taken from the memo. Any other costs, one core: 25 us an image
of 28 x 28, 1.2 ms a JPEG of 500 x 375 to 224 x 224. Memory a worker: one shard's pixels and one
batch of decoded images, at most 8 images or 32 megapixels (or one image).
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image
from pydantic import Field

from pipelines.core import budget, memo, records, stage
from pipelines.core.images.decoder import MAX_BATCH, Settings, borrowed
from pipelines.core.memo import Task
from pipelines.core.params import params
from pipelines.core.reasons import Reason
from pipelines.core.report import Report
from pipelines.core.shards import decoded, packed, pieces
from pipelines.core.shards.decoded import Moments
from pipelines.core.storage import sha256_file

MAX_BATCH_PIXELS = 32 << 20
STATISTICS_SPLIT = "train"


@params
class Params:
    """Parameters of `decode`."""

    height_px: Annotated[int, Field(ge=1, le=8192)]
    """Height of every decoded image, in pixels."""
    width_px: Annotated[int, Field(ge=1, le=8192)]
    """Width of every decoded image, in pixels."""
    channels: Literal[1, 3]
    """1 makes gray images, 3 RGB."""
    fit: Literal["crop", "pad", "stretch"]
    """How an image of another aspect fills the frame. crop: cut evenly off the longer sides. pad:
    show all of it, centred on black. stretch: distort it.
    """
    device: Literal["cpu", "gpu"]
    """Which decoder of DALI runs; they differ in bits, so it never falls back to the other."""
    max_rejected_fraction: Annotated[float, Field(ge=0, le=1)]
    """Share of the samples, 0..1, that may be rejected here before the stage fails."""


@dataclass(frozen=True)
class Shard:
    """The task of decoding one tar."""

    split: str
    bucket: int
    tar: Path
    start: int
    """Its rows in the index of the tars: from here,"""
    stop: int
    """to here, exclusive."""
    settings: Settings

    @property
    def name(self) -> str:
        """File name of the decoded shard."""
        return self.tar.with_suffix(".arrow").name

    def rows_of(self, index: pa.Table) -> list[dict[str, Any]]:
        """Its rows of the index of the tars."""
        rows: list[dict[str, Any]] = index.slice(self.start, self.stop - self.start).to_pylist()
        return rows


def run(job: stage.Job[Params]) -> Report:
    """Decode every shard, then join the pieces and describe them in the index."""
    source = records.read_ipc(job.inputs["shards"] / "index.arrow")
    settings = Settings(
        height=job.params.height_px,
        width=job.params.width_px,
        channels=job.params.channels,
        fit=job.params.fit,
        device=job.params.device,
    )
    tasks = _tasks(source, job.inputs["shards"], settings)
    folders = memo.build(job, decode, tasks, settings=settings, describe="shards decoded")
    joined = pieces.join(folders, job.out)
    rejected = budget.hold(
        job.stage, joined.rejected, source.num_rows, job.params.max_rejected_fraction
    )
    index = joined.rows.sort_by([("split", "ascending"), ("bucket", "ascending")])
    moments = Moments.total((_moments(counts) for counts in joined.counts), settings.channels)
    told = {"shape": settings.shape, "mean": moments.mean, "std": moments.std}
    known = {**records.metadata(source.schema), "format": decoded.FORMAT, **told}
    records.write_ipc(job.out / "index.arrow", records.with_metadata(index, known))
    records.write_parquet(job.out / "rejected.parquet", joined.rejected)
    splits: Counter[str] = Counter()
    for row in (rows := index.to_pylist()):
        splits[row["split"]] += row["num_rows"]
    return {
        "samples_in": source.num_rows,
        "samples_kept": splits.total(),
        "samples_rejected": joined.rejected.num_rows,
        "rejected": rejected,
        "splits": splits,
        "num_shards": index.num_rows,
        "num_bytes": sum(row["num_bytes"] for row in rows),
        **told,
        "dataset_version": sha256_file(job.out / "index.arrow"),
    }


def _tasks(source: pa.Table, tars: Path, settings: Settings) -> list[Task[Shard]]:
    """A task a tar, in the order of the index."""
    shards = list(_shards(source, tars, settings))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        digests = list(pool.map(packed.sha256, [shard.tar for shard in shards]))
    return [
        Task(shard.tar.stem, memo.digest(sha256, json.dumps(shard.rows_of(source))), shard)
        for shard, sha256 in zip(shards, digests, strict=True)
    ]


def _shards(source: pa.Table, tars: Path, settings: Settings) -> Iterator[Shard]:
    """What to decode, in the order of the index: its rows of one tar stand together.

    Not by `Table.group_by`, which gives the groups in an order of its own where there are many.
    """
    columns: list[list[Any]] = [source[name].to_pylist() for name in ("shard", "split", "bucket")]
    start = 0
    for (name, split, bucket), rows in itertools.groupby(zip(*columns, strict=True)):
        stop = start + sum(1 for _ in rows)
        yield Shard(split, bucket, tars / name, start, stop, settings)
        start = stop


def _moments(counts: Any) -> Moments:
    return Moments(counts["num_pixels"], tuple(counts["sums"]), tuple(counts["squares"]))


def decode(shard: Shard, folder: Path) -> None:
    """Decode one tar into one shard in a folder; into none where no image of it can be decoded.

    Raises:
        HeadraceError: the tar is not what the index describes, or DALI cannot run at all.
    """
    index = records.read_ipc(shard.tar.with_name("index.arrow"), must_be_sound=False)
    rows = shard.rows_of(index)
    images = np.empty((len(rows), *shard.settings.shape), np.uint8)
    is_good = np.zeros(len(rows), bool)
    rejected: list[dict[str, str]] = []
    with borrowed(shard.settings, shard.bucket) as decoder, packed.opened(shard.tar) as file:
        for start, stop in _batches(rows):
            encoded = [packed.read(file, shard.tar, row) for row in rows[start:stop]]
            is_good[start:stop] = decoder.decode(encoded, images[start:stop])
            bad = np.flatnonzero(~is_good[start:stop]).tolist()
            rejected += [_rejection(shard, rows[start + at], encoded[at]) for at in bad]
    kept = [row for row, good in zip(rows, is_good, strict=True) if good]
    good = images if len(kept) == len(rows) else images[is_good]
    _write(folder, shard, kept, good, rejected)


def _batches(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[int, int]]:
    """Cut rows into runs, bounded in images and in pixels; an image beyond that is a run alone."""
    start, num_pixels = 0, 0
    for at, row in enumerate(rows):
        own = row["width"] * row["height"]
        if at > start and (at - start == MAX_BATCH or num_pixels + own > MAX_BATCH_PIXELS):
            yield start, at
            start, num_pixels = at, 0
        num_pixels += own
    if start < len(rows):
        yield start, len(rows)


def _rejection(shard: Shard, row: dict[str, Any], data: bytes) -> dict[str, str]:
    return {
        "key": row["key"],
        "path": f"{shard.tar.name}:{row['key']}",
        "reason": Reason.DECODE_FAILED,
        "detail": f"DALI's {shard.settings.device} decoder refuses {_described(data)}",
    }


def _described(data: bytes) -> str:
    """What an image file says of itself in its header."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            return f"a {image.format} of {image.width} x {image.height} pixels, mode {image.mode}"
    except Exception:  # noqa: BLE001 - Pillow raises anything; it is bad data that we describe.
        return f"{len(data)} bytes that no header of an image begins"


def _write(
    folder: Path,
    shard: Shard,
    kept: Sequence[dict[str, Any]],
    images: npt.NDArray[np.uint8],
    rejected: list[dict[str, str]],
) -> None:
    """Write the piece of one shard."""
    of_statistics = images if shard.split == STATISTICS_SPLIT else images[:0]
    index = []
    if kept:
        path = folder / shard.name
        keys = [row["key"] for row in kept]
        decoded.write_shard(path, images, keys, [row["label"] for row in kept])
        index.append(_index_row(shard, path, len(kept)))
    pieces.write_account(
        folder,
        rows=pa.Table.from_pylist(index, schema=decoded.INDEX),
        rejected=records.rejected_table(rejected, "decode"),
        counts=asdict(Moments.of(of_statistics)),
    )


def _index_row(shard: Shard, path: Path, num_rows: int) -> dict[str, Any]:
    return {
        "split": shard.split,
        "bucket": shard.bucket,
        "shard": path.name,
        "num_rows": num_rows,
        "num_bytes": path.stat().st_size,
        "sha256": sha256_file(path),
    }


if __name__ == "__main__":
    stage.main("pipelines.decode")
