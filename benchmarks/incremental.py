"""What a second build costs: a project of photos, built by `dvc repro decode`, edited, built again.

20,000 JPEGs of about 500 x 375 pixels in ten archives by default (`benchmarks.photos`). Printed is
a row an edit: the seconds, their share of the first build, and the objects that `dvc push` then
sends. What may take how much is in `LIMITS`; a row that takes more is marked.

Run by `make bench-incremental`. Needs about 8 GB of disk and ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageOps
from ruamel.yaml import YAML

from benchmarks.photos import ROOTS, write_archives

ROOT = Path(__file__).parents[1]
CARD = """\
title: Crops of photos
licence: of the wallpapers' packages
origin: benchmarks/photos.py
task: classification
sources: [{url: source}]
samples: {layout: folders}
"""
SETTINGS = {
    "clean": {"max_rejected_fraction": 1},
    "decode": {"height_px": 96, "width_px": 96, "channels": 3},
}


@dataclass(frozen=True)
class Limit:
    """What a row may cost at most."""

    share: float | None = None
    """Of the first build's time."""
    seconds: float | None = None
    num_objects: int | None = None


LIMITS: Mapping[str, Limit] = {
    "first build": Limit(),
    "nothing, dvc repro": Limit(seconds=2.5),
    "nothing, dvc exp run": Limit(seconds=5),
    "one image changed": Limit(share=0.10, num_objects=8),
    "a new archive of 1 %": Limit(share=0.15),
    "a threshold, stage clean": Limit(seconds=2),
}


class Project:
    """The project that is measured, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """Copy this tree to `folder` and make it a project of photos."""
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for name in filter(None, listed.split("\0")):
            if name != "dvc.lock":
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)
        self.source = folder / "datasets" / "photos" / "source"
        self.source.mkdir(parents=True)
        self.source.with_name("dataset.yaml").write_text(CARD)
        self.change_params({"dataset": "photos", **SETTINGS})
        self.run("git", "init", "-q", "-b", "main")
        with (folder / ".gitignore").open("a") as ignored:
            ignored.write("/datasets/photos/source\n")
        self.run("dvc", "remote", "add", "-d", "store", str(folder.with_name("store")))
        self.commit()

    def run(self, *command: str) -> str:
        """Run a command of this environment; what it says."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        site = str(self.folder.with_name("site"))
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PATH": path, "DVC_SITE_CACHE_DIR": site},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}")
        return done.stdout

    def commit(self) -> None:
        """Commit what git sees; an experiment starts from a commit."""
        self.run("git", "add", "-A")
        name = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        self.run("git", *name, "commit", "-q", "--allow-empty", "-m", "measured")

    def change_params(self, changes: Mapping[str, object]) -> None:
        """Set values in params.yaml; a mapping changes keys of its section."""
        yaml, path = YAML(), self.folder / "params.yaml"
        document = yaml.load(path)
        for key, value in changes.items():
            if isinstance(value, Mapping):
                document[key].update(value)
            else:
                document[key] = value
        yaml.dump(document, path)

    def num_pushed(self) -> int:
        """Push, and count the objects that went."""
        said = self.run("dvc", "push")
        counted = re.search(r"(\d+) files? pushed", said)
        return int(counted[1]) if counted else 0


def change_one(archive: Path) -> None:
    """Mirror one image of an archive."""
    changed = archive.with_suffix(".new")
    with zipfile.ZipFile(archive) as before, zipfile.ZipFile(changed, "w") as after:
        infos = before.infolist()
        for info in infos:
            data = before.read(info)
            if info is infos[len(infos) // 2]:
                buffer = io.BytesIO()
                ImageOps.mirror(Image.open(io.BytesIO(data))).save(buffer, "JPEG", quality=95)
                data = buffer.getvalue()
            after.writestr(zipfile.ZipInfo(info.filename), data)
    changed.replace(archive)


@dataclass(frozen=True)
class Row:
    """One line of the result."""

    name: str
    seconds: float
    share: float
    num_objects: int | None

    @property
    def is_within(self) -> bool:
        """Whether it costs no more than it may."""
        limit = LIMITS[self.name]
        return (
            (limit.share is None or self.share <= limit.share)
            and (limit.seconds is None or self.seconds <= limit.seconds)
            and (limit.num_objects is None or (self.num_objects or 0) <= limit.num_objects)
        )

    def __str__(self) -> str:
        objects = "" if self.num_objects is None else str(self.num_objects)
        mark = "" if self.is_within else "  over the limit"
        return f"{self.name:26} {self.seconds:8.1f} s {self.share:7.1%} {objects:>8}{mark}"


def measure(folder: Path, num_images: int, wallpapers: list[Path]) -> list[Row]:
    """Build, edit and build again; the rows, printed as they come."""
    project = Project(folder / "project")
    write_archives(project.source, num_images, roots=wallpapers)
    rows: list[Row] = []

    def note(name: str, seconds: float, num_objects: int | None = None) -> None:
        rows.append(
            Row(name, seconds, seconds / (rows[0].seconds if rows else seconds), num_objects)
        )
        print(rows[-1], flush=True)

    def build(name: str, *command: str, pushes: bool = False) -> str:
        start = time.monotonic()
        said = project.run(*command)
        seconds = time.monotonic() - start
        note(name, seconds, project.num_pushed() if pushes else None)
        project.commit()
        return said

    repro = ("dvc", "repro", "decode")
    build("first build", *repro, pushes=True)
    build("nothing, dvc repro", *repro)
    build("nothing, dvc exp run", "dvc", "exp", "run", "decode")
    change_one(project.source / "part-03.zip")
    build("one image changed", *repro, pushes=True)
    more = write_archives(
        folder / "more", num_images // 100, num_archives=1, seed=2, roots=wallpapers
    )
    shutil.move(more[0], project.source / "part-10.zip")
    build("a new archive of 1 %", *repro, pushes=True)
    project.change_params({"clean": {"min_contrast": 20}})
    said = project.run("dvc", "repro", "clean")
    took = re.search(r"clean: done in ([0-9.]+) s", said)
    assert took, said
    note("a threshold, stage clean", float(took[1]))
    return rows


def main() -> None:
    """Measure, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-images", type=int, default=20_000)
    parser.add_argument("--wallpapers", type=Path, nargs="+", default=list(ROOTS))
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    print(f"{'':26} {'time':>10} {'of first':>7} {'objects':>8}")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        rows = measure(Path(folder), arguments.num_images, arguments.wallpapers)
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
