"""Where the stages left what is asked about: paths, params and locks of the current folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.core import project, records
from pipelines.core.buckets import bucket_of
from pipelines.core.errors import HeadraceError
from pipelines.core.project import Stage
from pipelines.core.route import Route, Settings, out_of, read_lock, route, settings
from pipelines.core.typed import read_yaml


@dataclass(frozen=True)
class Built:
    """A project whose stages have run, as far as they have."""

    route: Route
    params: Mapping[str, Any]
    lock: Mapping[str, Any]

    def path(self, text: str) -> Path:
        """A path of dvc.yaml with values in place of `${...}`."""
        return Path(project.resolved(text, self.params))

    def out(self, stage: Stage) -> Path:
        """The folder that a stage writes."""
        return self.path(out_of(stage))

    def settings(self, stage: Stage) -> Settings:
        """A stage's params."""
        return settings(stage, self.params, self.lock)

    @property
    def clean(self) -> Stage:
        """The first stage that decides about samples."""
        return self.route.manifests[0]

    @property
    def raw(self) -> Path:
        """The raw data."""
        return self.path(self.clean.reads["raw"])

    def manifest_of(self, stage: Stage, key: str) -> Path:
        """The one file of a stage's manifest in which the row of a key would stand.

        Raises:
            HeadraceError: the stage has written no manifest.
        """
        names = self.manifests(stage)
        return names[bucket_of(key, len(names))]

    def manifests(self, stage: Stage) -> list[Path]:
        """All files of a stage's manifest, by bucket.

        Raises:
            HeadraceError: there are none, or not all.
        """
        folder = self.out(stage) / "manifest"
        names = sorted(folder.glob("*.parquet"))
        if not names:
            raise HeadraceError(
                f"Stage {stage.name} has not run here.",
                where=str(folder),
                found="no manifest",
                fix="dvc repro (or dvc pull, where somebody pushed the data)",
            )
        with _whole(names[0]):
            num_buckets = records.metadata(pq.read_schema(names[0])).get("num_buckets")
        if len(names) != num_buckets:
            raise HeadraceError(
                "The files of a manifest are not all there.",
                where=str(folder),
                expected=f"{num_buckets} files",
                found=f"{len(names)}",
                fix=f"dvc checkout --force {folder.parent}",
            )
        return names

    def row_of(self, stage: Stage, key: str) -> dict[str, Any] | None:
        """The row of a key in a stage's manifest."""
        path = self.manifest_of(stage, key)
        rows = read_rows(path, key)
        return rows[0] if rows else None

    def rejected(self, stage: Stage) -> list[dict[str, str]]:
        """The rows that a stage rejected; none where it has not run."""
        path = self.out(stage) / "rejected.parquet"
        return read_rows(path) if path.is_file() else []


def read_rows(path: Path, key: str | None = None) -> list[dict[str, Any]]:
    """Rows of a Parquet file; with `key`, only those that have it.

    Raises:
        HeadraceError: it is damaged.
    """
    wanted = None if key is None else pc.field("key") == key
    with _whole(path):
        rows: list[dict[str, Any]] = pq.read_table(
            path, filters=wanted, partitioning=None
        ).to_pylist()
    return rows


def read_columns(path: Path, columns: Sequence[str]) -> pa.Table:
    """Columns of a Parquet file; HeadraceError where it is damaged."""
    with _whole(path):
        return pq.read_table(path, columns=list(columns), partitioning=None)


def read_json(path: Path) -> dict[str, Any]:
    """An object of a JSON file; HeadraceError where it is damaged."""
    with _whole(path):
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError(f"a {type(found).__name__}, not an object")
    return found


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Tell of a file that no stage leaves like this."""
    try:
        yield
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise HeadraceError(
            "A file that a stage wrote cannot be read.",
            where=str(path),
            found=str(error).splitlines()[0],
            fix=f"rm -f {path} && dvc checkout (or dvc repro)",
        ) from None


def read() -> Built:
    """The project in the current folder.

    Raises:
        HeadraceError: dvc.yaml or params.yaml is missing or wrong.
    """
    described = project.read()
    return Built(route(described), read_yaml(Path("params.yaml")), read_lock())
