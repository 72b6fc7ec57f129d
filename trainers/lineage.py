"""Where weights come from: the record that leads from a weights file back to data, params and code.

The record is part of a DVC out, so it holds only what decides the bits of the weights: two runs
that must give equal weights write equal records. Hence no clock, host name, path, number of ranks,
and no `HEAD`: `dvc.lock` is committed after the run, so a record that named the commit it ran at
would differ in every fresh clone. The code is named by content instead, as git blob ids (they need
no git), and `commit_of` finds the commit that holds exactly that code.

Costs parsing and a SHA-1 of every first-party module (some tens of small files, about 0.1 s) and a
SHA-256 of the weights; a step of the chain costs a SHA-256 of its sample ids, 8 bytes a sample.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import itertools
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file

from pipelines.core.storage import sha256_file
from trainers.environment import environment
from trainers.weights import weights_sha256

ROOT = Path(__file__).resolve().parents[1]
"""The project: what is below is named by its path, so the record is the same in every clone."""


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
    inside = {path: blob for path, blob in blobs.items() if not path.startswith("module:")}
    if not inside:
        return None
    for commit in _git(root, "log", "--all", "--format=%H", "--", *inside).split():
        listing = _git(root, "ls-tree", "-r", "-z", commit, "--", *inside).split("\0")
        rows = (row.partition("\t") for row in listing if row)
        if {path: head.split()[2] for head, _, path in rows} == inside:
            return commit
    return None


class Chain:
    """A hash over the steps of a run: equal digests mean equal data and equal losses, step by step.

    `H(0) = SHA-256("headrace chain 1")`; `H(n) = SHA-256(H(n-1), step, number of ids, ids, loss)`,
    integers as little-endian int64. The state is two values, so a resumed run goes on where the
    checkpoint left it.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256(b"headrace chain 1").digest()
        self.num_steps = 0

    @property
    def digest(self) -> str:
        """The last hash, hexadecimal."""
        return self._digest.hex()

    def add(self, step: int, ids: npt.NDArray[np.int64], loss_bits: int | bytes) -> None:
        """Append one step.

        Args:
            step: its number.
            ids: sample ids of the global batch, int64 of any shape, in the order that the step
                defines.
            loss_bits: the loss as raw bits (an integer pattern of at most 64 bits, or bytes), never
                as rounded text.
        """
        if ids.dtype != np.int64:
            raise TypeError(f"ids must be int64, not {ids.dtype}")
        if isinstance(loss_bits, int):
            loss_bits = (loss_bits & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
        link = hashlib.sha256(self._digest)
        link.update(step.to_bytes(8, "little", signed=True) + ids.size.to_bytes(8, "little"))
        link.update(ids.astype("<i8").tobytes())
        link.update(loss_bits)
        self._digest = link.digest()
        self.num_steps += 1

    def state(self) -> dict[str, Any]:
        """JSON-able; `from_state` continues from it."""
        return {"digest": self.digest, "num_steps": self.num_steps}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Chain:
        """The chain as it stood when `state` was taken."""
        chain = cls()
        chain._digest = bytes.fromhex(state["digest"])
        chain.num_steps = int(state["num_steps"])
        return chain


def lineage(
    *,
    dataset_version: str,
    params: Mapping[str, Any],
    seeds: Mapping[str, int],
    code: Mapping[str, str],
    chain: Chain,
    weights: Path,
) -> dict[str, Any]:
    """The record of a finished run, JSON-able.

    `code` is what the function of that name gave, `weights` the safetensors file.
    """
    return {
        "format": 1,
        "dataset_version": dataset_version,
        "params": dict(params),
        "seeds": dict(seeds),
        "code": dict(code),
        "environment": environment(),
        "chain": chain.state(),
        "weights": {
            "file": weights.name,
            "sha256": sha256_file(weights),
            "tensors_sha256": weights_sha256(load_file(weights)),
        },
    }


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
