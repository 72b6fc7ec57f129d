"""A whole small project for end-to-end tests: this tree with 360 images, in a git repository.

`built` in tests/conftest.py makes one, runs `dvc repro` in it and lends it to all tests of all
workers; a test that changes anything works in a `copy_of` it.
"""

import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ruamel.yaml import YAML

Shared = Callable[[str, Callable[[Path], None]], Path]
"""The fixture `shared`: makes a folder of a name once for all tests of all workers."""

ROOT = Path(__file__).parents[1]
SAMPLES = {"train": 300, "test": 60}
SMALL: Mapping[str, Mapping[str, object]] = {
    "clean": {"target_bucket_samples": 100},
    "train": {"epochs": 1},
}
"""What differs from params.yaml, so that a whole run takes seconds."""


def run(
    folder: Path, *command: str, check: bool = True, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment in a project; output and errors are one text."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            # What DVC remembers of files it has hashed must not outlive the test.
            "DVC_SITE_CACHE_DIR": str(folder.with_name(f"{folder.name}.site")),
            **(environment or {}),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert not check or done.returncode == 0, done.stdout
    return done


def stages_run(output: str) -> list[str]:
    """The stages that DVC says it ran."""
    marker = "Running stage '"
    lines = [line for line in output.splitlines() if line.startswith(marker)]
    return [line.removeprefix(marker).partition("'")[0] for line in lines]


def make_project(folder: Path) -> None:
    """Copy this tree without what its own runs left, cut its sample down, and commit it to git."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        is_result = name == "dvc.lock" or Path(name).parts[2:3] == ("reports",)
        if (ROOT / name).is_file() and not is_result:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    _cut_sample(folder / "datasets" / "fashion")
    change_params(folder, SMALL)
    run(folder, "git", "init", "-q", "-b", "main")
    commit(folder, "start")


def commit(folder: Path, message: str) -> None:
    """Commit everything that git does not ignore."""
    run(folder, "git", "add", "-A")
    run(folder, "git", "commit", "-q", "-m", message)


def change_params(folder: Path, changes: Mapping[str, object]) -> None:
    """Set values in params.yaml; a mapping changes the keys it has in that section."""
    _change_yaml(folder / "params.yaml", changes)


def copy_of(project: Path, folder: Path) -> Path:
    """A copy to change freely, cache and all."""
    shutil.copytree(project, folder, symlinks=True)
    return folder


def digests(folder: Path, *below: str) -> dict[str, str]:
    """SHA-256 of every file below some folders of a project, by relative path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in below
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and not path.name.startswith((".lock-", ".tmp-"))
    }


def _cut_sample(dataset: Path) -> None:
    """Keep the first images of each split in sample.zip, and say so in the card."""
    whole = zipfile.ZipFile(io.BytesIO((dataset / "sample.zip").read_bytes()))
    rows = list(csv.reader(io.TextIOWrapper(whole.open("labels.csv"), "utf-8")))
    header, *body = rows
    kept = [
        row
        for split, count in SAMPLES.items()
        for row in [row for row in body if row[header.index("split")] == split][:count]
    ]
    with zipfile.ZipFile(dataset / "sample.zip", "w") as cut:
        for row in kept:
            name = row[header.index("path")]
            cut.writestr(zipfile.ZipInfo(name), whole.read(name))
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows([header, *kept])
        cut.writestr(zipfile.ZipInfo("labels.csv"), lines.getvalue())
    data = (dataset / "sample.zip").read_bytes()
    source = {
        "url": "sample.zip",
        "sha256": hashlib.sha256(data).hexdigest(),
        "num_bytes": len(data),
    }
    _change_yaml(dataset / "dataset.yaml", {"sources": [source]})


def _change_yaml(path: Path, changes: Mapping[str, object]) -> None:
    yaml = YAML()
    document = yaml.load(path)
    for key, value in changes.items():
        if isinstance(value, Mapping):
            document[key].update(value)
        else:
            document[key] = value
    yaml.dump(document, path)
