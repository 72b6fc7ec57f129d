"""Stage shard: the kept samples as WebDataset tars, one a split and bucket, with an index.

For people and programs that want encoded images: `webdataset`, tar, DALI's webdataset reader, and
the next stage. A sample is three members of a tar:

- `<key>.<ext>`: the image file as it came, `ext` by its content (jpg, png, webp, bmp, tif, ppm).
  A format that DALI cannot decode is turned into PNG without loss (see
  `pipelines.core.images.transcode`) and counted.
- `<key>.cls`: the class index, as text.
- `<key>.json`: label, where it came from, and what was found in the source file: format, mode,
  width, height, orientation, SHA-256.

`index.arrow` has one row a sample, sorted by (split, bucket, key): where the image's bytes lie in
which tar, and their CRC-32C. Every raw file is checked against the SHA-256 that `clean` saw.

A bucket whose manifest is as before is taken from the memo. Any other costs reading its raw data
once and writing it once, and a PNG compression an image that is turned. Memory: one image and one
bucket's rows a worker.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import google_crc32c
import pyarrow as pa
from pydantic import Field

from pipelines.core import budget, memo, records, stage
from pipelines.core.errors import HeadraceError
from pipelines.core.images.transcode import Encoded, decodable
from pipelines.core.memo import Task
from pipelines.core.params import params
from pipelines.core.reasons import Reason
from pipelines.core.report import Report
from pipelines.core.samples import raw
from pipelines.core.shards import packed, pieces
from pipelines.core.shards.tars import Member, TarShard
from pipelines.core.storage import sha256_file

_TOLD = ("label", "format", "mode", "width", "height", "orientation", "sha256")


@params
class Params:
    """Parameters of `shard`."""

    max_rejected_fraction: Annotated[float, Field(ge=0, le=1)]
    """Share of the samples, 0..1, that may be rejected here before the stage fails."""


@dataclass(frozen=True)
class Bucket:
    """The task of packing one bucket."""

    number: int
    manifest: Path
    raw: Path


def run(job: stage.Job[Params]) -> Report:
    """Pack every bucket, then join the pieces."""
    manifests = sorted(job.inputs["manifest"].glob("*.parquet"))
    known = _common_metadata(manifests, job.inputs["manifest"])
    tasks = [
        # The manifest tells the SHA-256 of every raw file, so its own stands for them too.
        Task(path.stem, sha256_file(path), Bucket(int(path.stem), path, job.inputs["raw"]))
        for path in manifests
    ]
    folders = memo.build(job, pack, tasks, describe="buckets packed")
    joined = pieces.join(folders, job.out)

    index = joined.rows.sort_by([(name, "ascending") for name in ("split", "bucket", "key")])
    num_in = index.num_rows + joined.rejected.num_rows
    rejected = budget.hold(job.stage, joined.rejected, num_in, job.params.max_rejected_fraction)
    index = records.sealed(records.with_metadata(index, known))
    records.write_ipc(job.out / "index.arrow", index)
    records.write_parquet(job.out / "rejected.parquet", joined.rejected)
    transcoded: Counter[str] = Counter()
    for counts in joined.counts:
        transcoded.update(counts["transcoded"])
    tars = list(job.out.glob("*.tar"))
    return {
        "samples_in": num_in,
        "samples_kept": index.num_rows,
        "samples_rejected": joined.rejected.num_rows,
        "rejected": rejected,
        "splits": Counter(map(str, index["split"].to_pylist())),
        "transcoded_to_png": transcoded,
        "num_shards": len(tars),
        "num_bytes": sum(path.stat().st_size for path in tars),
    }


def pack(bucket: Bucket, folder: Path) -> None:
    """Write the tars of one bucket into a folder, one for each split that it has samples of.

    Raises:
        HeadraceError: the raw data are not what the manifest describes.
    """
    rows: list[dict[str, Any]] = []
    rejected: list[dict[str, str]] = []
    transcoded: Counter[str] = Counter()
    tars: dict[str, TarShard] = {}
    with contextlib.ExitStack() as stack:
        for sample in records.read_parquet(bucket.manifest).to_pylist():
            encoded = _encoded(bucket.raw, sample)
            if isinstance(encoded, str):
                rejected.append(_rejection(sample, encoded))
                continue
            split = sample["split"]
            if split not in tars:
                path = folder / f"{split}-{bucket.number:05d}.tar"
                tars[split] = stack.enter_context(TarShard(path))
            member = _add(tars[split], sample, encoded)
            rows.append(_row(sample, bucket.number, tars[split].name, member, encoded.data))
            transcoded[sample["format"]] += encoded.is_transcoded
    pieces.write_account(
        folder,
        rows=pa.Table.from_pylist(rows, schema=packed.INDEX),
        rejected=records.rejected_table(rejected, "shard"),
        counts={"transcoded": +transcoded},
    )


def _common_metadata(manifests: list[Path], folder: Path) -> Mapping[str, Any]:
    """The metadata that all manifests share.

    Raises:
        HeadraceError: there is no manifest, or they are not of one dataset.
    """
    fix = "`dvc repro` builds them again"
    if not manifests:
        raise HeadraceError("There is no manifest to pack.", where=str(folder), fix=fix)
    found = {path: records.metadata(records.read_parquet_schema(path)) for path in manifests}
    common = found[manifests[0]]
    for path, own in found.items():
        if own != common:
            what = "The manifests are not of one dataset: their labels or buckets differ."
            raise HeadraceError(
                what, where=str(path), expected=str(common), found=str(own), fix=fix
            )
    names = [f"{number:05d}.parquet" for number in range(common["num_buckets"])]
    if [path.name for path in manifests] != names:
        raise HeadraceError(
            "The manifests of a dataset are not all there.",
            where=str(folder),
            expected=f"{names[0]} to {names[-1]}",
            found=f"{len(manifests)} files",
            fix=fix,
        )
    return common


def _encoded(root: Path, sample: Mapping[str, Any]) -> Encoded | str:
    """The image as DALI can decode it, or why there is none."""
    changed = functools.partial(
        HeadraceError,
        "The raw data changed after they were cleaned.",
        where=f"{root}/{_path(sample)}",
        expected=f"{sample['num_bytes']} bytes with SHA-256 {sample['sha256']}",
        fix="`dvc repro` brings them back, or cleans again what changed",
    )
    try:
        data = raw.read(root, sample["container"], sample["member"], sample["num_bytes"])
    except raw.ReadFault as fault:
        raise changed(found=fault.detail) from None
    found = hashlib.sha256(data).hexdigest()
    if found != sample["sha256"]:
        raise changed(found=f"{len(data)} bytes with SHA-256 {found}")
    try:
        return decodable(data, sample["format"], sample["mode"], sample["num_frames"])
    except Exception as error:  # noqa: BLE001 - Pillow raises anything; bad data is a row.
        return f"no PNG can be made of this {sample['format']}: {type(error).__name__}"


def _path(sample: Mapping[str, Any]) -> str:
    return "/".join(filter(None, (sample["container"], sample["member"])))


def _rejection(sample: Mapping[str, Any], detail: str) -> dict[str, str]:
    return {
        "key": sample["key"],
        "path": _path(sample),
        "reason": Reason.UNREADABLE,
        "detail": detail,
    }


def _add(tar: TarShard, sample: Mapping[str, Any], encoded: Encoded) -> Member:
    """Append a sample to a tar; where its image lies."""
    told = {"path": _path(sample)} | {name: sample[name] for name in _TOLD}
    components = {
        encoded.extension: encoded.data,
        "cls": str(sample["label_index"]).encode(),
        "json": json.dumps(told, sort_keys=True, ensure_ascii=False).encode(),
    }
    return tar.add(sample["key"], components)[encoded.extension]


def _row(
    sample: Mapping[str, Any], bucket: int, shard: str, member: Member, data: bytes
) -> dict[str, Any]:
    return {
        "split": sample["split"],
        "bucket": bucket,
        "shard": shard,
        "key": sample["key"],
        "offset": member.offset,
        "length": member.length,
        "crc32c": google_crc32c.value(data),
        "label": sample["label_index"],
        "width": sample["width"],
        "height": sample["height"],
    }


if __name__ == "__main__":
    stage.main("pipelines.shard")
