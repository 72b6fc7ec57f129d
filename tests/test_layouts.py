"""The same images as folders, WebDataset tars and Parquet are the same samples."""

import contextlib
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines import clean, shard
from pipelines.core import records, stage
from tests import messy

LABELS = ["cat", "dog"]
CARD = "title: t\nlicence: MIT\norigin: o\ntask: classification\nsources: [{url: raw}]\n"
SAMPLES = {
    "folders": "{layout: folders}",
    "webdataset": "{layout: webdataset, label_ending: cls}",
    "parquet": "{layout: parquet, image_column: image, label_column: label}",
}
CLEAN = "--card dataset.yaml --raw raw --out clean --report c.json"
SHARD = "--manifest clean/manifest --raw raw --out shards --report s.json"
Image = tuple[str, str, bytes]
"""Split, label, content."""


def images() -> list[Image]:
    return [
        (split, label, messy.jpeg(messy.stripes(label, seed)))
        for first, split in enumerate(("train", "val", "test"))
        for label in LABELS
        for seed in range(8 * first, 8 * first + 8)
    ]


def write(raw: Path, layout: str, split: str, own: list[Image]) -> None:
    if layout == "folders":
        for number, (_, label, data) in enumerate(own):
            path = raw / split / label / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    elif layout == "webdataset":
        with tarfile.open(raw / f"pets-{split}-000.tar", "w") as tar:
            for number, (_, label, data) in enumerate(own):
                for ending, content in (("jpg", data), ("cls", label.encode())):
                    info = tarfile.TarInfo(f"{number:06d}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    else:
        cells = [{"bytes": data, "path": f"{at}.jpg"} for at, (_, _, data) in enumerate(own)]
        table = pa.table({"image": cells, "label": [LABELS.index(label) for _, label, _ in own]})
        classes = {"label": {"names": LABELS, "_type": "ClassLabel"}}
        told = json.dumps({"info": {"features": classes}})
        table = table.replace_schema_metadata({"huggingface": told})
        pq.write_table(table, raw / f"{split}-00000-of-00001.parquet", row_group_size=5)


def build(folder: Path, layout: str) -> tuple[list[Any], list[Any]]:
    """Content, label and split of each sample after `clean`, and in the tars of `shard`."""
    (folder / "raw").mkdir(parents=True)
    for split in ("train", "val", "test"):
        write(folder / "raw", layout, split, [one for one in images() if one[0] == split])
    (folder / "dataset.yaml").write_text(f"{CARD}samples: {SAMPLES[layout]}\n")
    params = {"clean": messy.PARAMS, "shard": {"max_rejected_fraction": 0}}
    (folder / "params.yaml").write_text(json.dumps(params))
    with contextlib.chdir(folder):
        stage.execute(clean, "clean", CLEAN.split())
        stage.execute(
            shard,
            "shard",
            SHARD.split(),
        )
    manifest = [
        row
        for file in sorted((folder / "clean" / "manifest").iterdir())
        for row in records.read_parquet(file).to_pylist()
    ]
    told = sorted((row["sha256"], row["label"], row["split"]) for row in manifest)
    given = {row["key"]: (row["label"], row["split"]) for row in manifest}
    return told, sorted((digest, *given[key]) for key, digest in packed(folder / "shards").items())


def packed(shards: Path) -> dict[str, str]:
    """SHA-256 of the image of each key in the tars."""
    found = {}
    for path in shards.glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                stem, _, ending = member.name.rpartition(".")
                if ending == "jpg":
                    found[stem] = hashlib.sha256(file.read()).hexdigest()
    return found


@pytest.mark.slow
def test_same_images_in_any_layout_are_the_same_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", "1")
    built = {layout: build(tmp_path / layout, layout) for layout in SAMPLES}
    assert len(built["folders"][0]) == 48
    assert built["folders"][0] == built["folders"][1]
    assert built["webdataset"] == built["folders"]
    assert built["parquet"] == built["folders"]
