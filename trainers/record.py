"""A finished run as it lies on a disk, and the data that it was trained on, wherever both are.

A run is known by its weights file alone, which may have been copied anywhere; its data are known by
their version, which is a hash, so they are found by content and never by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from pipelines.core.errors import HeadraceError
from pipelines.core.storage import sha256_file
from pipelines.core.typed import validate
from trainers import train, weights
from trainers.chain import Chain
from trainers.reader.index import Index, open_index

WEIGHTS, LINEAGE, STEPS = "model.safetensors", "lineage.json", "steps.parquet"


@dataclass(frozen=True)
class Run:
    """A weights file and what it says about itself."""

    path: Path
    about: weights.About

    @property
    def folder(self) -> Path:
        """Where the other files of the run are, if they are anywhere."""
        return self.path.parent

    @property
    def config(self) -> train.Params:
        """The params of the run; those that do not decide the weights are as good as off.

        Raises:
            HeadraceError: they are not those of this trainer.
        """
        values = {**self.about.params, "checkpoint_interval_s": 1e9, "num_checkpoints": 1}
        values |= {"keep_every_steps": 0, "profile": False}
        return validate(train.Params, values, where=f"{self.path}: params")

    def read_steps(self) -> Chain:
        """What the run kept of its steps; its digest tells whether they are this run's.

        Raises:
            HeadraceError: it is not there, or cannot be read.
        """
        path = self.folder / STEPS
        try:
            return Chain.read(path)
        except (OSError, ValueError, pa.ArrowException, HeadraceError) as error:
            raise _unreadable(path, error) from None

    def read_lineage(self) -> dict[str, Any]:
        """The record beside the weights.

        Raises:
            HeadraceError: it is not there, or cannot be read.
        """
        path = self.folder / LINEAGE
        try:
            record = json.loads(path.read_bytes())
            return TypeAdapter(dict[str, Any]).validate_python(record)
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> HeadraceError:
    return HeadraceError(
        "A part of the run's record cannot be read.",
        where=str(path),
        found=getattr(error, "found", None) or f"{type(error).__name__}: {error}",
        fix="dvc checkout or dvc pull, which bring the whole folder of the run back",
    )


def open_run(path: Path) -> Run:
    """Read what the weights at `path`, a file or the folder of a run, say about themselves.

    Raises:
        HeadraceError: there are none, or they are damaged, or not of this trainer.
    """
    file = path / WEIGHTS if path.is_dir() else path
    return Run(file, weights.read_about(file))


def data_at_hand(folder: Path | None) -> dict[str, Path]:
    """Dataset version -> folder of the decoded data.

    Args:
        folder: where to look; None: all of `datasets/`.
    """
    folders = [folder] if folder else sorted(Path("datasets").glob("*/decoded"))
    indexes = [path for path in (it / "index.arrow" for it in folders) if path.is_file()]
    return {sha256_file(path): path.parent for path in indexes}


def find_data(run: Run, folder: Path | None) -> Index:
    """The data that the run was trained on.

    Args:
        run: which names their version.
        folder: where they must be; None: anywhere in `datasets/`.

    Raises:
        HeadraceError: there are none, or those of other versions only; names them all.
    """
    found = data_at_hand(folder)
    if run.about.dataset_version not in found:
        lines = [f"dataset version {version} in {path}" for version, path in found.items()]
        raise HeadraceError(
            "The data of this run are not at hand.",
            where=str(folder or "datasets/*/decoded"),
            expected=f"dataset version {run.about.dataset_version} (in {run.path})",
            found="; ".join(lines) or "no decoded dataset",
            fix="git checkout the commit of the run (`python -m trainers lineage` names it) and "
            "`dvc checkout`, or name their folder by --data",
        )
    return open_index(found[run.about.dataset_version])
