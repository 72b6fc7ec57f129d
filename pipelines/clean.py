"""Stage clean: which samples there are, what each looks like, and which of them may be used.

Finds samples by the card's layout, loose or inside archives; looks at the bytes of each once; then
keeps it or drops it with a reason (`core.reasons` lists them, `core.samples.decide` says in which
order they apply). Given splits are honoured; otherwise a hash of the content draws one.

- `manifest/<bucket>.parquet`: a row a kept sample (`records.MANIFEST`), sorted by key. Every bucket
  has its file, also when nothing is in it.
- `rejected.parquet`: a row a dropped sample (`records.REJECTED`), sorted by key.
- `leaks.parquet`: the closest pairs of kept samples that look alike and are in different splits
  (`records.LEAKS`); empty where `near_duplicates` is `ignore`.

Costs reading new raw data twice, and one look at each new content: one core looks at about 2,000
JPEGs of 500 x 375 a second. Other thresholds are applied to what was seen before, and open no
image. Memory: one image a worker, and about a kilobyte a sample.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
from pydantic import Field

from pipelines.core import budget, card, records, stage
from pipelines.core.buckets import MIB, bucket_of, num_buckets_for
from pipelines.core.errors import HeadraceError
from pipelines.core.images import features
from pipelines.core.images.features import Limits
from pipelines.core.params import params
from pipelines.core.report import Report
from pipelines.core.samples import census, leaks
from pipelines.core.samples.clusters import NearDuplicates, Policy
from pipelines.core.samples.decide import Rules, Verdict, decide
from pipelines.core.samples.find import find
from pipelines.core.samples.hamming import MAX_RADIUS
from pipelines.core.samples.listing import Dropped, Sample, place
from pipelines.core.samples.looks import features_of
from pipelines.core.samples.outliers import MaxScores

Share = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(gt=0)]


@params
class Params:
    """Parameters of `clean`."""

    target_bucket_mib: Annotated[float, Field(gt=0)]
    """Mean size of a bucket's image files; with the next, sets the number of buckets."""
    target_bucket_samples: Annotated[int, Field(ge=1)]
    """Mean number of samples of a bucket."""
    max_file_mib: Annotated[float, Field(gt=0, le=2048)]
    """Larger files are rejected unread."""
    max_megapixels: Annotated[float, Field(gt=0, le=1024)]
    """Images of more million pixels are rejected before they are decoded."""
    min_side_px: Annotated[int, Field(ge=1)]
    """Images with a shorter side are rejected."""
    max_aspect_ratio: Annotated[float, Field(ge=1)]
    """Images whose longer side is more than so many shorter ones are rejected."""
    min_contrast: Annotated[float, Field(ge=0, le=127.5)]
    """Images whose gray levels (0..255) deviate less are rejected as blank; 0 keeps all."""
    max_blur_z: Score | None
    """Images less sharp than the others by a larger robust z-score are rejected; null: none."""
    max_darkness_z: Score | None
    """The same of darker ones."""
    max_low_information_z: Score | None
    """The same of ones with less contrast."""
    max_size_z: Score | None
    """The same of ones with more or fewer pixels."""
    max_aspect_z: Score | None
    """The same of longer ones."""
    near_duplicates: Policy
    """What becomes of images that look alike: ignore | flag (name them) | keep_together (in one
    drawn split) | drop (so, and one of each label stays)."""
    near_duplicate_radius_bits: Annotated[int, Field(ge=0, le=MAX_RADIUS)]
    """Two images look alike if at most so many of the 64 bits of their hashes differ."""
    val_fraction: Share
    """Share of `val` among samples without a given split."""
    test_fraction: Share
    """Share of `test` among samples without a given split."""
    max_rejected_fraction: Share
    """Share of the samples that may be rejected before the stage fails."""

    def __post_init__(self) -> None:
        """Check what concerns two fields."""
        if self.val_fraction + self.test_fraction > 1:
            raise ValueError("val_fraction and test_fraction are more than 1 together")

    @property
    def limits(self) -> Limits:
        """What an image may cost."""
        return Limits(int(self.max_file_mib * MIB), int(self.max_megapixels * 1_000_000))

    @property
    def rules(self) -> Rules:
        """What an image must be."""
        return Rules(
            min_side_px=self.min_side_px,
            max_aspect_ratio=self.max_aspect_ratio,
            min_contrast=self.min_contrast,
            val_fraction=self.val_fraction,
            test_fraction=self.test_fraction,
            near_duplicates=NearDuplicates(self.near_duplicates, self.near_duplicate_radius_bits),
            max_scores=MaxScores(
                blur=self.max_blur_z,
                darkness=self.max_darkness_z,
                low_information=self.max_low_information_z,
                size=self.max_size_z,
                aspect=self.max_aspect_z,
            ),
        )


class Bucket(NamedTuple):
    """The samples of one bucket."""

    number: int
    samples: tuple[Sample, ...]
    """Sorted by key."""


def run(job: stage.Job[Params]) -> Report:
    """Find the samples, look at them, decide, and write who stays and who goes."""
    told, folder = card.load(job.inputs["card"]), job.inputs["raw"]
    listing = find(folder, told)
    num_in = len(listing.samples) + len(listing.dropped)
    if not num_in:
        raise HeadraceError("No sample was found.", where=str(folder), fix=_LAYOUT)
    for spelling in listing.merged_labels:
        job.log.info("label spelled differently: %s", spelling)
    buckets = into_buckets(listing.samples, job.params)
    samples = [sample for bucket in buckets for sample in bucket.samples]
    table = features_of(job, folder, [sample.file for sample in samples], job.params.limits)
    verdicts = decide(samples, features.from_table(table), job.params.rules)
    kept, dropped = _divide(buckets, table, verdicts)
    rejected = _rejected(job.stage, [*listing.dropped, *dropped])
    reasons = budget.hold(job.stage, rejected, num_in, job.params.max_rejected_fraction)
    labels = told.labels or tuple(sorted({row.label for rows in kept for row in rows.samples}))
    manifests = [_manifest(rows, labels, len(buckets)) for rows in kept]
    whole = pa.concat_tables(manifests)
    _check_usable(whole, folder, reasons)
    (job.out / "manifest").mkdir()
    for bucket, manifest in zip(buckets, manifests, strict=True):
        path = job.out / "manifest" / f"{bucket.number:05d}.parquet"
        records.write_parquet(path, manifest)
    records.write_parquet(job.out / "rejected.parquet", rejected)
    leaking = leaks.find(whole, job.params.rules.near_duplicates)
    records.write_parquet(job.out / "leaks.parquet", leaking.table)
    return {
        "samples_in": num_in,
        "samples_kept": whole.num_rows,
        "samples_rejected": rejected.num_rows,
        "rejected": reasons,
        "num_buckets": len(buckets),
        **census.census(whole, labels),
        **leaks.summary(whole, leaking),
    }


_LAYOUT = "`samples:` in the card says how samples lie in raw/: see datasets/README.md"


def into_buckets(found: Sequence[Sample], settings: Params) -> list[Bucket]:
    """All buckets, by number, with their samples sorted by key."""
    num_buckets = num_buckets_for(
        len(found),
        sum(sample.file.num_bytes for sample in found),
        target_samples=settings.target_bucket_samples,
        target_mib=settings.target_bucket_mib,
    )
    by_number: dict[int, list[Sample]] = defaultdict(list)
    for sample in sorted(found):
        by_number[bucket_of(sample.key, num_buckets)].append(sample)
    return [Bucket(number, tuple(by_number[number])) for number in range(num_buckets)]


class _Rows(NamedTuple):
    """The kept samples of a bucket, with their features and verdicts."""

    samples: list[Sample]
    features: pa.Table
    verdicts: list[Verdict]


def _divide(
    buckets: Sequence[Bucket], table: pa.Table, verdicts: Sequence[Verdict]
) -> tuple[list[_Rows], list[Dropped]]:
    """The kept samples by bucket, and the dropped ones."""
    kept, dropped, start = [], [], 0
    for bucket in buckets:
        own = verdicts[start : start + len(bucket.samples)]
        stay = [at for at, verdict in enumerate(own) if verdict.reason is None]
        here = [bucket.samples[at] for at in stay]
        rows = table.take(pa.array([start + at for at in stay], pa.int64()))
        start += len(bucket.samples)
        kept.append(_Rows(here, rows, [own[at] for at in stay]))
        dropped += [
            Dropped(sample.key, place(sample.file), verdict.reason, verdict.detail)
            for sample, verdict in zip(bucket.samples, own, strict=True)
            if verdict.reason is not None
        ]
    return kept, dropped


def _manifest(rows: _Rows, labels: Sequence[str], num_buckets: int) -> pa.Table:
    index = {label: number for number, label in enumerate(labels)}
    columns: dict[str, list[Any]] = {
        "key": [sample.key for sample in rows.samples],
        "container": [sample.file.container for sample in rows.samples],
        "member": [sample.file.member for sample in rows.samples],
        "label": [sample.label for sample in rows.samples],
        "label_index": [index[sample.label] for sample in rows.samples],
        "split": [verdict.split for verdict in rows.verdicts],
        "cluster": [verdict.cluster for verdict in rows.verdicts],
    }
    table = rows.features
    for name, values in columns.items():
        field = records.MANIFEST.field(name)
        table = table.append_column(field, pa.array(values, field.type))
    table = table.select(records.MANIFEST.names)
    return records.with_metadata(table, {"labels": list(labels), "num_buckets": num_buckets})


def _rejected(name: str, dropped: Iterable[Dropped]) -> pa.Table:
    return records.rejected_table([row._asdict() for row in dropped], name)


def _check_usable(manifest: pa.Table, folder: Path, reasons: dict[str, int]) -> None:
    """Refuse what nothing could be learnt from."""
    lost = ", ".join(f"{reason} {count}" for reason, count in Counter(reasons).most_common(3))
    found = f"rejected: {lost or 'none'}"
    if not manifest.num_rows:
        raise HeadraceError("No sample is left.", where=str(folder), found=found, fix=_LAYOUT)
    classes = manifest["label"].unique().to_pylist()
    if len(classes) < 2:
        raise HeadraceError(
            "All samples that are left are of one class.",
            where=str(folder),
            expected="at least two classes",
            found=f"{manifest.num_rows} samples of {classes[0]!r}; {found}",
            fix=_LAYOUT,
        )


if __name__ == "__main__":
    stage.main("pipelines.clean")
