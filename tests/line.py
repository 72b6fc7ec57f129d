"""A messy dataset behind `clean`, `shard` and `decode`, for tests of what reads all of them."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pipelines import clean, decode, explain, shard
from pipelines.core import stage
from tests.messy import PARAMS, write_messy

CARD = """\
title: Cats & dogs <of our street>
licence: MIT
origin: tests/messy.py
task: classification
sources:
  - url: raw
samples:
  layout: folders
"""
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "clean": PARAMS,
    "shard": {"max_rejected_fraction": 0.1},
    "decode": {
        "height_px": 24,
        "width_px": 32,
        "channels": 3,
        "fit": "crop",
        "device": "cpu",
        "max_rejected_fraction": 0.1,
    },
    "explain": {"num_pictures": 4, "picture_px": 64},
}


def make_line(folder: Path) -> None:
    """Write the dataset into `folder` and run the three stages."""
    write_messy(folder / "raw")
    (folder / "pets").mkdir()
    (folder / "pets" / "dataset.yaml").write_text(CARD)
    (folder / "params.yaml").write_text(json.dumps(SETTINGS))
    os.environ["HEADRACE_NUM_WORKERS"] = "1"
    with contextlib.chdir(folder):
        for module, name, arguments in (
            (clean, "clean", "--card pets/dataset.yaml --raw raw --out clean"),
            (shard, "shard", "--manifest clean/manifest --raw raw --out shards"),
            (decode, "decode", "--shards shards --out decoded"),
        ):
            stage.execute(module, name, arguments.split())
    del os.environ["HEADRACE_NUM_WORKERS"]


def explain_in(folder: Path, out: str = "report.html") -> Path:
    """Run `explain` in `folder`; the page."""
    arguments = (
        "--card pets/dataset.yaml --raw raw --clean clean --shards shards --decoded decoded --out"
    )
    with contextlib.chdir(folder):
        stage.execute(explain, "explain", [*arguments.split(), out])
    return folder / out
