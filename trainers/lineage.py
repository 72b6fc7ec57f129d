"""Where weights come from: the record that leads from a weights file back to data, params and code.

The record is part of a DVC out, so it holds only what decides the bits of the weights: two runs
that must give equal weights write equal records. Hence no clock, host name, path, number of ranks,
and no `HEAD`: `dvc.lock` is committed after the run, so a record that named the commit it ran at
would differ in every fresh clone. The code is named by content instead, as git blob ids (they need
no git), and `commit_of` finds the commit that holds exactly that code.

Costs parsing and a SHA-1 of every first-party module (some tens of small files, about 0.1 s) and a
SHA-256 of the weights.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import itertools
import json
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from pipelines.core.storage import sha256_file
from trainers.weights import About, weights_sha256

ROOT = Path(__file__).resolve().parents[1]
"""The project: what is below is named by its path, so the record is the same in every clone."""

ORIGIN = ("dataset_version", "params", "seeds", "code", "environment", "chain")
"""What the weights file and the record both say."""


def code(entries: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """The first-party files that `entries` consist of: path below `root` -> git blob id.

    Follows import statements wherever they stand (also inside functions), not what happens to be
    imported: the answer depends on the files alone. First-party is what is neither Python's own
    nor installed as a package; a file outside `root` is named `module:<name>`.

    Args:
        entries: module names, such as `trainers.train` and the module of the user's own model
            (what is imported by a computed name is not seen, and must be an entry of its own).
        root: the project.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        spec = _first_party(name)
        if spec is None or spec.origin is None:
            continue
        path = Path(spec.origin).resolve()
        inside = path.is_relative_to(root)
        found[str(path.relative_to(root)) if inside else f"module:{name}"] = blob_id(path)
        waiting += _imported(spec, path)
    return dict(sorted(found.items()))


def blob_id(path: Path) -> str:
    """The id that git gives to this file's content, computed without git."""
    data = path.read_bytes()
    # SHA-1 as git's name for the content; nothing is protected by it.
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def commit_of(blobs: Mapping[str, str], root: Path = ROOT) -> str | None:
    """The newest commit that brought the code to exactly this state, as `code` tells it.

    `None` where no commit holds it (the code ran with changes that were never committed), and where
    there is no git or no repository. Experiments of DVC are searched too.
    """
    inside = {path: blob for path, blob in blobs.items() if ":" not in path}
    if not inside:
        return None
    for commit in _git(root, "log", "--all", "--format=%H", "--", *inside).split():
        listing = _git(root, "ls-tree", "-r", "-z", commit, "--", *inside).split("\0")
        rows = (row.partition("\t") for row in listing if row)
        if {path: head.split()[2] for head, _, path in rows} == inside:
            return commit
    return None


def lineage(about: About, weights: Path) -> dict[str, Any]:
    """The record of a finished run, JSON-able: what its weights file says, and what names that.

    Args:
        about: what was written into the file.
        weights: the safetensors file.
    """
    tensors = load_file(weights)
    return {
        "format": 1,
        **{name: value for name, value in asdict(about).items() if name in ORIGIN},
        "weights": {
            "file": weights.name,
            "sha256": sha256_file(weights),
            "tensors_sha256": weights_sha256(tensors),
            "tensors": {name: weights_sha256({name: tensors[name]}) for name in sorted(tensors)},
        },
    }


def digest_of_code(blobs: Mapping[str, str]) -> str:
    """One SHA-256, hexadecimal, for all of what `code` tells."""
    return hashlib.sha256(json.dumps(blobs, sort_keys=True).encode()).hexdigest()


def _first_party(name: str) -> ModuleSpec | None:
    """The module of this name, if its file is neither Python's own nor installed."""
    top = name.partition(".")[0]
    try:
        # First without importing anything; the parents of a dotted name are then our own.
        if not _is_ours(importlib.util.find_spec(top)):
            return None
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a function of a module, or __main__
        return None
    return spec if _is_ours(spec) else None


def _is_ours(spec: ModuleSpec | None) -> bool:
    if spec is None:
        return False
    if spec.origin is None or not spec.has_location:  # a folder without __init__.py, or built in
        return spec.submodule_search_locations is not None
    path = Path(spec.origin).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(
        path.is_relative_to(Path(sysconfig.get_path(kind)).resolve())
        for kind in ("stdlib", "platstdlib")
    )


def _imported(spec: ModuleSpec, path: Path) -> Iterator[str]:
    """Every name that the source at `path` may import, the packages above each included."""
    if path.suffix != ".py":
        return
    package = spec.name if spec.submodule_search_locations is not None else spec.parent
    for node in ast.walk(ast.parse(path.read_bytes(), path)):
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module=module, names=aliases, level=level):
                base = importlib.util.resolve_name("." * level + (module or ""), package)
                names = [base, *(f"{base}.{alias.name}" for alias in aliases)]
            case _:
                continue
        for name in names:
            yield from itertools.accumulate(name.split("."), lambda above, part: f"{above}.{part}")


def _git(root: Path, *arguments: str) -> str:
    """Output of a git command in `root`, empty where git fails or is not there."""
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
