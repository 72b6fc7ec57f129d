"""The steps of a sample's way, one function a kind of stage, each from what that stage wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.commands.why import alike, origin, runs, thresholds
from pipelines.commands.why.built import Built
from pipelines.commands.why.find import Found
from pipelines.commands.why.step import Fact, Step, not_built
from pipelines.core import records
from pipelines.core.card import Card
from pipelines.core.errors import HeadraceError
from pipelines.core.project import Stage
from pipelines.core.shards import packed

_DAMAGED = "DAMAGED"


def trace(built: Built, found: Found) -> list[Step]:
    """The steps of a sample, up to the stage that rejected it, or to the runs that used it."""
    told = origin.read_card(built)
    row = built.row_of(built.clean, found.key) if found.key else None
    steps = [_ingest(built, told, found, row)] if built.route.ingest else []
    for stage in built.route.manifests:
        step = _manifest(built, told, stage, found)
        steps.append(step)
        if step.outcome != "passed":
            return steps
    for of_stage in (_shard, _decode):
        step = of_stage(built, found)
        steps.append(step)
        if step.outcome != "passed":
            return steps
    split = str((row or {})["split"])
    return steps + runs.steps(built, found.key, split)


def _ingest(built: Built, told: Card | None, found: Found, row: Mapping[str, Any] | None) -> Step:
    """Where the file is in raw/, and where that came from."""
    stage = built.route.ingest
    assert stage is not None
    if row is None:
        place = found.rejections[0]["path"]
        url = origin.source(told, place)
        values = {"place": place, "source": url}
        return Step(stage.name, "passed", _from("file", place, values, url))
    place = "::".join(filter(None, (row["container"], row["member"])))
    values = {
        "container": row["container"],
        "member": row["member"] or None,
        "num_bytes": row["num_bytes"],
        "source": (url := origin.source(told, row["container"])),
    }
    return Step(
        stage.name, "passed", _from("file", f"{place}, {row['num_bytes']:,} bytes", values, url)
    )


def _from(name: str, text: str, values: Mapping[str, Any], url: str | None) -> tuple[Fact, ...]:
    facts = [Fact(name, text, values)]
    return (*facts, Fact("source", url)) if url else tuple(facts)


def _manifest(built: Built, told: Card | None, stage: Stage, found: Found) -> Step:
    """What `clean`, or a stage that filters its manifest, decided, and by which threshold."""
    settings = built.settings(stage)
    if not (built.out(stage) / "manifest").is_dir():
        return not_built(stage.name, str(built.out(stage)))
    row = built.row_of(stage, found.key) if found.key else None
    if row is None:
        return _rejected(built, stage, found)
    facts: list[Fact] = []
    if stage == built.clean:
        facts = _seen(built, told, found, row)
    facts += thresholds.passed(row, settings)
    return Step(stage.name, "passed", tuple(facts))


def _seen(built: Built, told: Card | None, found: Found, row: Mapping[str, Any]) -> list[Fact]:
    """What `clean` found out about a sample that it kept."""
    line = origin.line_of(told, built.raw, row)
    label = origin.label(told, row, line)
    split = origin.split(told, row, line, built.settings(built.clean))
    features = ("brightness", "contrast", "sharpness")
    looks = ", ".join(f"{name} {row[name]:.4g}" for name in features)
    kind = f"{row['format']} of {row['width']} x {row['height']} px, mode {row['mode']}"
    names = ("format", "width", "height", "mode", "orientation", "num_frames", *features)
    facts = [
        Fact("label", label.text, label.values),
        Fact("split", split.text, split.values),
        Fact("content", f"sha256 {row['sha256']}", {"sha256": row["sha256"]}),
        Fact("image", kind, {"features": {name: row[name] for name in names}}),
        Fact("features", looks),
        *alike.near_duplicates(built, row),
    ]
    equal = [
        other["path"]
        for other in built.rejected(built.clean)
        if other["detail"] == f"equal to {found.key}"
    ]
    also = [row for row in found.rejections if row["stage"] == built.clean.name]
    if equal:
        text = f"{len(equal)} rejected of the same bytes: {', '.join(equal[:5])}"
        facts.append(Fact("duplicates", text, {"duplicates": [*equal]}))
    for other in also:
        text = f"another row of this key was rejected as {other['reason']}: {other['detail']}"
        facts.append(Fact("also", text, {"also_rejected": [dict(other) for other in also]}))
    return facts


def _rejected(built: Built, stage: Stage, found: Found) -> Step:
    """A stage that has no row of the sample: it rejected it, or is out of date."""
    rows = [row for row in found.rejections if row["stage"] == stage.name]
    if not rows:
        text = f"{stage.name} knows no such sample, and did not reject it: dvc repro"
        return Step(stage.name, "not built", (Fact("out of date", text),))
    facts = [fact for row in rows for fact in thresholds.rejection(row, built.settings(stage))]
    if len(rows) > 1:
        text = f"{len(rows)} rows have this key"
        facts.append(Fact("rows", text, {"rejections": [dict(row) for row in rows]}))
    return Step(stage.name, "rejected", tuple(facts))


def _shard(built: Built, found: Found) -> Step:
    """The tar of a sample, and where in it the image lies."""
    stage = built.route.shard
    folder = built.out(stage)
    index = folder / "index.arrow"
    if not index.is_file():
        return not_built(stage.name, str(index))
    row = _index_row(index, found.key)
    if row is None:
        return _rejected(built, stage, found)
    tar = folder / row["shard"]
    end = row["offset"] + row["length"]
    values = {name: row[name] for name in ("shard", "bucket", "offset", "length", "crc32c")}
    state = _state_in_tar(tar, row)
    return Step(
        stage.name,
        "passed",
        (
            Fact("shard", f"{tar}, bytes {row['offset']}-{end} ({row['length']:,})", values),
            Fact("crc32c", f"{row['crc32c']:08x}, {state}", {"state": state}),
        ),
    )


def _index_row(index: Path, key: str) -> dict[str, Any] | None:
    table = records.read_ipc(index)
    rows: list[dict[str, Any]] = table.filter(pc.field("key") == key).to_pylist()
    return rows[0] if rows else None


def _state_in_tar(tar: Path, row: Mapping[str, Any]) -> str:
    try:
        with packed.opened(tar) as file:
            packed.read(file, tar, row)
    except HeadraceError as error:
        return f"{_DAMAGED}: {error.fix}"
    return "checked"


def _decode(built: Built, found: Found) -> Step:
    """The row of a sample in its decoded shard."""
    stage = built.route.decode
    folder = built.out(stage)
    if not (folder / "index.arrow").is_file():
        return not_built(stage.name, str(folder / "index.arrow"))
    row = _index_row(built.out(built.route.shard) / "index.arrow", found.key)
    assert row is not None
    path = (folder / row["shard"]).with_suffix(".arrow")
    table = records.read_ipc(path) if path.is_file() else None
    at = -1 if table is None else pc.index(table["key"], found.key).as_py()
    if table is None or at < 0:
        return _rejected(built, stage, found)
    shape = records.metadata(records.read_ipc(folder / "index.arrow").schema).get("shape", [])
    crc, state = _state_of_row(table, at)
    pixels = " x ".join(map(str, shape))
    return Step(
        stage.name,
        "passed",
        (
            Fact(
                "shard",
                f"{path}, row {at} of {table.num_rows:,} ({pixels} uint8)",
                {"shard": path.name, "row": at, "num_rows": table.num_rows, "shape": shape},
            ),
            Fact("crc32c", f"{crc:08x}, {state}", {"crc32c": crc, "state": state}),
        ),
    )


def _state_of_row(table: pa.Table, at: int) -> tuple[int, str]:
    row = table.slice(at, 1)
    crc: int = row["crc32c"][0].as_py()
    images: Any = row["image"].combine_chunks()
    found = google_crc32c.value(images.to_numpy_ndarray().tobytes())
    return crc, "checked" if found == crc else f"{_DAMAGED}: dvc repro --force decode"
