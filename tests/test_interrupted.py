"""Killed at any moment, or run twice at once, the line ends in the same bytes and loses no work.

Real processes, as `dvc repro` starts them, over a folder of small images.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipelines.core.memo import store
from tests import messy
from tests.packed import bytes_of
from tests.project import ROOT, Shared
from tests.test_incremental import CARD, DECODE, LINE, image

NUM_IMAGES = 240
OUTS = tuple(LINE)
LINE_IN_ONE_PROCESS = """
import sys
from pipelines.core import stage
for text in sys.argv[1:]:
    name, *arguments = text.split()
    stage.main(f"pipelines.{name}", arguments)
"""


def command() -> list[str]:
    """The three stages, one after the other, in one process."""
    stages = [f"{name} {inputs} --out {name}" for name, (_, inputs) in LINE.items()]
    return [sys.executable, "-c", LINE_IN_ONE_PROCESS, *stages]


def start(folder: Path, root: Path | None = None) -> subprocess.Popen[str]:
    """Begin a build in a folder; its memo is that of `root`."""
    return subprocess.Popen(
        command(),
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DVC_ROOT": str(root or folder),
            "HEADRACE_NUM_WORKERS": "2",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """Wait for a build to succeed; what it said."""
    said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def outputs(folder: Path) -> Mapping[str, bytes]:
    return {f"{out}/{name}": data for out in OUTS for name, data in bytes_of(folder / out).items()}


def num_taken(said: str) -> int:
    """How many results a build took from the memo, by its own account."""
    return sum(int(number) for number in re.findall(r": (\d+) of \d+ as before", said))


def make_raw(folder: Path) -> None:
    (folder / "raw").mkdir()
    with zipfile.ZipFile(folder / "raw" / "all.zip", "w") as archive:
        for number in range(NUM_IMAGES):
            archive.writestr(f"{messy.CLASSES[number % 2]}/{number:03d}.png", image(number))
    (folder / "dataset.yaml").write_text(CARD)
    clean = {**messy.PARAMS, "max_rejected_fraction": 1.0, "target_bucket_samples": 8}
    sections = {"clean": clean, "shard": {"max_rejected_fraction": 1.0}, "decode": DECODE}
    (folder / "params.yaml").write_text(json.dumps(sections))


@pytest.fixture
def raw(shared: Shared) -> Path:
    """A folder in which nothing was built."""
    return shared("interrupted-raw", make_raw)


@pytest.fixture
def undisturbed(shared: Shared, raw: Path) -> Mapping[str, bytes]:
    """What a build makes that nothing disturbs; and how long it took."""

    def make(folder: Path) -> None:
        shutil.copytree(raw, folder, dirs_exist_ok=True)
        begun = time.monotonic()
        end(start(folder))
        (folder / "seconds").write_text(str(time.monotonic() - begun))

    folder = shared("undisturbed", make)
    return {**outputs(folder), "seconds": (folder / "seconds").read_bytes()}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(25))
def test_after_a_kill_the_bytes_are_the_same_and_no_work_is_done_again(
    raw: Path, undisturbed: Mapping[str, bytes], tmp_path: Path, seed: int
) -> None:
    folder = shutil.copytree(raw, tmp_path / "killed")
    process = start(folder)
    time.sleep(random.Random(seed).uniform(0.2, 1.0) * float(undisturbed["seconds"]))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = sum(1 for _ in store.entries(folder / ".memo"))
    said = end(start(folder))
    assert num_taken(said) >= kept
    assert outputs(folder) == {name: undisturbed[name] for name in outputs(folder)}
    assert len(outputs(folder)) == len(undisturbed) - 1
    assert list((folder / ".memo").glob(".tmp-*")) == []


def test_two_runs_at_once_share_what_they_make(
    raw: Path, undisturbed: Mapping[str, bytes], tmp_path: Path
) -> None:
    folders = [shutil.copytree(raw, tmp_path / name) for name in ("workspace", "temp")]
    for process in [start(folder, tmp_path) for folder in folders]:
        end(process)
    for folder in folders:
        assert outputs(folder) == {name: undisturbed[name] for name in outputs(folder)}
        assert not (folder / ".memo").exists()
    entries = {entry.name for entry in store.entries(tmp_path / ".memo")}
    third = shutil.copytree(raw, tmp_path / "third")
    assert num_taken(end(start(third, tmp_path))) == len(entries)
