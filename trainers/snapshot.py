"""One checkpoint on disk: there in full or not at all, and telling when it is damaged.

`step-00000120` holds `state.safetensors`, `meta.json` and `manifest.json` (sizes and SHA-256 of the
other two, the step, the run). It is written as `step-00000120.tmp`, every file and the folder are
flushed, then it is renamed. Killed between any two system calls, what carries a final name is
whole. A checkpoint of the same step first steps aside to `.old`, which counts until the new one is
there. No pickle is read or written.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipelines.core.storage import fsync_path, sha256_file

STATE, META, MANIFEST = "state.safetensors", "meta.json", "manifest.json"
FORMAT = 1

_NAME = re.compile(r"step-(\d{8,})(\.old)?")


class Damaged(Exception):  # noqa: N818 - a finding about a file, not a fault of the program
    """Why a checkpoint cannot be used, as half a sentence."""


def write(folder: Path, step: int, tensors: Mapping[str, Tensor], meta: str) -> None:
    """Write the checkpoint of `step` into `folder`, which is named by its run; made if not there.

    Args:
        folder: of the run.
        step: at least 0.
        tensors: contiguous, in CPU memory, each with memory of its own.
        meta: JSON.

    Raises:
        OSError: with its number, from whichever of the calls it comes.
    """
    _make_durably(folder)
    final = folder / f"step-{step:08d}"
    temporary, old = final.with_suffix(".tmp"), final.with_suffix(".old")
    temporary.mkdir()
    with _numbered_errors():
        save_file(dict(tensors), temporary / STATE)
    (temporary / META).write_text(meta, encoding="utf-8")
    files = {name: _seal(temporary / name) for name in (STATE, META)}
    manifest = {"format": FORMAT, "run": folder.name, "step": step, "files": files}
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True))
    fsync_path(temporary / MANIFEST)
    fsync_path(temporary)
    if final.exists():
        final.rename(old)
    temporary.rename(final)
    fsync_path(folder)
    shutil.rmtree(old, ignore_errors=True)


def read(path: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """Verify the checkpoint at `path` and return its step, tensors (CPU memory) and meta.

    Raises:
        Damaged: a file is missing, cut, altered or unreadable, or it is not a checkpoint of the run
            and step that its place says.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        step = int(path.name[5:].removesuffix(".old"))
        here = (FORMAT, path.parent.name, step)
        if (manifest["format"], manifest["run"], manifest["step"]) != here:
            raise Damaged("it was saved by another run, for another step or in another format")
        for name in (STATE, META):
            _verify(path / name, manifest["files"][name])
        meta = json.loads((path / META).read_bytes())
        return step, load_file(path / STATE), meta
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error


def found(folder: Path, last_step: int | None = None) -> list[Path]:
    """Checkpoints in `folder`, newest first; of one step, the one that stepped aside comes last.

    Args:
        folder: of the run.
        last_step: leave out those of later steps; None: none.
    """
    ranked = [
        ((step, aside is None), path)
        for path, step, aside in _named(folder)
        if last_step is None or step <= last_step
    ]
    return [path for _, path in sorted(ranked, reverse=True)]


def clean(folder: Path) -> None:
    """Remove what a killed process left half done. Only for the one that writes."""
    for path in folder.glob("step-*.tmp"):
        shutil.rmtree(path)
    for path in folder.glob("step-*.old"):
        final = path.with_suffix("")
        if final.exists():
            shutil.rmtree(path)
        else:  # killed between the two renames of `write`
            path.rename(final)


class Keep(NamedTuple):
    """Which checkpoints stay."""

    last: int
    """So many."""
    every: int = 0
    """Those of its multiples; 0: none."""
    up_to: int = 0
    """The last up to this step."""


def prune(folder: Path, step: int, keep: Keep) -> None:
    """Remove all that do not stay.

    Those of steps later than `step` do not: they belong to an undone future.
    """
    here = [(number, path) for path, number, _ in _named(folder)]
    numbers = sorted(number for number, _ in here if number <= step)
    kept = {number for number in numbers if keep.every and number % keep.every == 0}
    kept.update(numbers[max(0, len(numbers) - keep.last) :])
    kept.update([number for number in numbers if number <= keep.up_to][-1:])
    for number, path in here:
        if number not in kept:
            # First out of sight, whole: a half-removed one would look damaged.
            shutil.rmtree(path.rename(path.with_name(f"{path.name}.tmp")))


def _named(folder: Path) -> Iterator[tuple[Path, int, str | None]]:
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            yield path, int(match[1]), match[2]


def _seal(path: Path) -> dict[str, Any]:
    """Flush a file; its size and checksum."""
    fsync_path(path)
    return {"num_bytes": path.stat().st_size, "sha256": sha256_file(path)}


def _verify(path: Path, sealed: Mapping[str, Any]) -> None:
    num_bytes = path.stat().st_size
    if num_bytes != sealed["num_bytes"]:
        raise Damaged(f"{path.name} has {num_bytes} bytes, not {sealed['num_bytes']}")
    if sha256_file(path) != sealed["sha256"]:
        raise Damaged(f"{path.name} is not what was written (its SHA-256 differs)")


def _make_durably(folder: Path) -> None:
    """Make a folder whose entry, with those of the folders made above it, survives a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        fsync_path(path.parent)


@contextmanager
def _numbered_errors() -> Iterator[None]:
    """Give safetensors' input and output errors, which are text, back their number."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error
