"""A small project in two states of its data: as built, and after one edit of each kind.

Both are committed, `HEAD~1` and `HEAD`, and the workspace is that of `HEAD`. Between them stands a
stage that drops blurred images, made by `python -m pipelines new`. Nothing is trained anew.
"""

import csv
import hashlib
import io
import re
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.project import commit, run

REMOVED, RELABELLED, MOVED = "train/00005", "train/00007", "train/00010"
CHANGED, BLANKED, UNKNOWN = "train/00009", "train/00012", "train/00014"
RENAMED, RENAMED_TO = "train/00013", "train/renamed"
ADDED, TINY, COPIED, COPY = "train/added", "train/tiny", "train/00011", "train/copy"
BLURRED = "train/blurred"
NUM_BEFORE = 360
NUM_AFTER = NUM_BEFORE - 3 + 1
"""Less: removed, blanked, of an unknown label. More: added."""


def png(pixels: NDArray[np.integer]) -> bytes:
    """A gray image as a file."""
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def noise(side_px: int, seed: int) -> bytes:
    """An image of noise: sharp, and unlike any other."""
    return png(np.random.default_rng(seed).integers(0, 256, (side_px, side_px)))


def make_edited(built: Path, folder: Path) -> None:
    """Make the project in the empty `folder` from one that was built."""
    shutil.copytree(built, folder, symlinks=True, dirs_exist_ok=True)
    commit(folder, "built")
    _edit(folder / "datasets" / "fashion")
    run(folder, sys.executable, "-m", "pipelines", "new", "drop_blurred", "--after", "clean")
    run(folder, "dvc", "repro", "decode", environment={"HEADRACE_NUM_WORKERS": "1"})
    commit(folder, "edited")


def _edit(dataset: Path) -> None:
    """One edit of each kind."""
    with zipfile.ZipFile(dataset / "sample.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    header, *rows = csv.reader(io.StringIO(files.pop("labels.csv").decode()))
    path, label, split = (header.index(name) for name in ("path", "label", "split"))
    by_key = {row[path].removesuffix(".png"): row for row in rows}
    del files[by_key.pop(REMOVED)[path]]
    by_key[RELABELLED][label] = other_label(by_key[RELABELLED][label])
    by_key[MOVED][split] = "val"
    by_key[UNKNOWN][label] = "Hat"
    files[f"{CHANGED}.png"] = noise(28, 1)
    files[f"{BLANKED}.png"] = png(np.full((28, 28), 9))
    files[f"{RENAMED_TO}.png"] = files.pop(f"{RENAMED}.png")
    by_key[RENAMED][path] = f"{RENAMED_TO}.png"
    ramp = np.add.outer(np.arange(28), np.arange(28)) * 4
    new = {
        ADDED: noise(28, 2),
        TINY: noise(4, 3),
        COPY: files[f"{COPIED}.png"],
        BLURRED: png(ramp),
    }
    for key, data in new.items():
        files[f"{key}.png"] = data
        row = list(by_key[COPIED])
        row[path] = f"{key}.png"
        by_key[key] = row
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([header, *by_key.values()])
    with zipfile.ZipFile(dataset / "sample.zip", "w") as archive:
        for name, data in {**files, "labels.csv": lines.getvalue().encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    data = (dataset / "sample.zip").read_bytes()
    card = (dataset / "dataset.yaml").read_text()
    card = re.sub("sha256: .*", f"sha256: {hashlib.sha256(data).hexdigest()}", card)
    (dataset / "dataset.yaml").write_text(re.sub("num_bytes: .*", f"num_bytes: {len(data)}", card))


def other_label(label: str) -> str:
    """The label that a relabelled sample gets."""
    return "Bag" if label != "Bag" else "Coat"
