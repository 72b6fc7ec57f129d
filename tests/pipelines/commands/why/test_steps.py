import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.commands.why import built, find, steps
from pipelines.commands.why.step import Step
from pipelines.core.records import read_ipc
from tests import edited as edits
from tests.project import copy_of


def trace(key: str) -> list[Step]:
    project = built.read()
    return steps.trace(project, find.find(project, key))


def facts(step: Step) -> dict[str, str]:
    return {fact.name: fact.text for fact in step.facts}


@pytest.fixture
def copy(edited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The dataset of a copy to be damaged; the copy is the current folder."""
    folder = copy_of(edited, tmp_path / "copy")
    monkeypatch.chdir(folder)
    return folder / "datasets" / "fashion"


def test_a_kept_sample_passes_every_stage_in_order(in_edited: Path) -> None:
    way = trace("train/00001")
    names = ["ingest", "clean", "drop_blurred", "shard", "decode", "train", "evaluate"]
    assert [step.stage for step in way] == names
    assert [step.outcome for step in way[:5]] == ["passed"] * 5


def test_what_was_seen_and_decided_is_told(in_edited: Path) -> None:
    ingest, clean, blurred, *_ = trace("train/00001")
    assert facts(ingest)["file"].startswith("sample.zip::train/00001.png, ")
    assert facts(ingest)["source"] == "sample.zip"
    assert facts(clean)["label"] == "T-shirt/top (class 0), from line 3 of sample.zip/labels.csv"
    assert facts(clean)["image"] == "PNG of 28 x 28 px, mode L"
    assert len(clean.json["sha256"]) == 64  # type: ignore[arg-type]
    assert ", at least 10" in facts(blurred)["thresholds"]


def test_the_places_that_are_told_hold_the_sample(in_edited: Path) -> None:
    *_, shard, decode, _, _ = trace("train/00001")
    packed, decoded = shard.json, decode.json
    tar = in_edited / "datasets/fashion/shards" / str(packed["shard"])
    start, length = packed["offset"], packed["length"]
    assert isinstance(start, int)
    assert isinstance(length, int)
    assert tar.read_bytes()[start : start + length].startswith(b"\x89PNG")
    table = read_ipc(in_edited / "datasets/fashion/decoded" / str(decoded["shard"]))
    assert table["key"].to_pylist()[int(str(decoded["row"]))] == "train/00001"
    assert (packed["state"], decoded["state"]) == ("checked", "checked")


@pytest.mark.parametrize(
    ("key", "stage", "reason", "threshold"),
    [
        (edits.BLANKED, "clean", "blank", "min_contrast 1"),
        (edits.TINY, "clean", "too_small", "min_side_px 8"),
        (edits.UNKNOWN, "clean", "unknown_label", None),
        (edits.COPY, "clean", "exact_duplicate", None),
        (edits.BLURRED, "drop_blurred", "blurred", "min_sharpness 10"),
    ],
)
def test_a_rejected_sample_ends_where_it_was_rejected(
    in_edited: Path, key: str, stage: str, reason: str, threshold: str | None
) -> None:
    last = trace(key)[-1]
    assert (last.stage, last.outcome) == (stage, "rejected")
    told = facts(last)
    assert told["reason"].split(":")[0] == reason
    assert told.get("threshold", told.get("thresholds")) == threshold


def test_a_sample_names_the_copies_that_were_rejected_for_it(in_edited: Path) -> None:
    clean = trace(edits.COPIED)[1]
    assert facts(clean)["duplicates"].endswith(f"sample.zip/{edits.COPY}.png")
    assert f"equal to {edits.COPIED}" in facts(trace(edits.COPY)[-1])["detail"]


@pytest.mark.parametrize("missing", ["shards", "decoded", "drop_blurred"])
def test_the_way_ends_at_the_first_stage_that_has_not_run(copy: Path, missing: str) -> None:
    shutil.rmtree(copy / missing)
    last = trace("train/00001")[-1]
    assert last.outcome == "not built"
    assert f"datasets/fashion/{missing}" in last.facts[0].text


def overwrite(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + 4] = b"XXXX"
    path.unlink()
    path.write_bytes(data)


def in_tar(dataset: Path, way: list[Step]) -> None:
    place = way[3].json
    assert isinstance(place["offset"], int)
    overwrite(dataset / "shards" / str(place["shard"]), place["offset"] + 100)


def in_decoded(dataset: Path, way: list[Step]) -> None:
    path = dataset / "decoded" / str(way[4].json["shard"])
    row = read_ipc(path).slice(int(str(way[4].json["row"])), 1)
    image: Any = row["image"].combine_chunks()
    pixels = image.to_numpy_ndarray().tobytes()
    overwrite(path, path.read_bytes().index(pixels) + 300)


@pytest.mark.parametrize(("damage", "at"), [(in_tar, 3), (in_decoded, 4)])
def test_flipped_bytes_are_found_by_their_checksum(
    copy: Path, damage: Callable[[Path, list[Step]], None], at: int
) -> None:
    damage(copy, trace("train/00001"))
    found = trace("train/00001")[at]
    assert "DAMAGED: " in facts(found)["crc32c"]
    assert "dvc repro" in facts(found)["crc32c"]
