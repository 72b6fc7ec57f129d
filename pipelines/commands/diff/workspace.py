"""The version of the data in the workspace: what the stages left there, committed or not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo

from pipelines.commands.diff.version import File, Version
from pipelines.core import project
from pipelines.core.errors import HeadraceError
from pipelines.core.route import Route, out_of, route
from pipelines.core.storage import sha256_file
from pipelines.core.typed import read_yaml

NAME = "workspace"


def version() -> Version:
    """The data in the current folder; costs an MD5 of their tables.

    Raises:
        HeadraceError: they were not built, or not in full.
    """
    params = read_yaml(Path("params.yaml"))
    stages = route(project.read())
    folders = {
        stage.name: Path(project.resolved(out_of(stage), params)) for stage in stages.rejecting
    }
    manifest = _manifest(folders[stages.manifests[-1].name])
    index = folders[stages.decode.name] / "index.arrow"
    return Version(
        name=NAME,
        dataset=str(params.get("dataset")),
        digest=sha256_file(index) if index.is_file() else None,
        manifest=manifest,
        rejected={name: _file(folder / "rejected.parquet") for name, folder in folders.items()},
        late=frozenset({stages.shard.name, stages.decode.name}),
        notes=tuple(_out_of_date(stages)),
    )


def _manifest(folder: Path) -> dict[int, File]:
    paths = sorted((folder / "manifest").glob("*.parquet"))
    if not paths:
        raise _missing(folder / "manifest")
    return {int(path.stem): _file(path) for path in paths}


def _file(path: Path) -> File:
    try:
        md5 = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    except FileNotFoundError:
        raise _missing(path) from None
    return File(str(path), md5, path.read_bytes)


def _missing(path: Path) -> HeadraceError:
    return HeadraceError(
        "The data in the workspace are not all there.",
        where=str(path),
        found="nothing",
        fix="dvc repro (or dvc pull, where somebody pushed the data)",
    )


def _out_of_date(stages: Route) -> Iterable[str]:
    """A note for each stage whose inputs have changed since it ran, as `dvc status` finds."""
    upstream = [stages.ingest.name] if stages.ingest else []
    names = [*upstream, *(stage.name for stage in stages.rejecting)]
    try:
        with Repo() as repo:
            status = repo.status(targets=names)
    except DvcException as error:
        yield f"whether the workspace is up to date is not known: {str(error).splitlines()[0]}"
        return
    for name in names:
        changed = _changed(status.get(name, ()))
        if changed:
            yield (
                f"{name} is out of date in the workspace ({', '.join(changed)}):"
                " what it made before is compared; dvc repro"
            )


def _changed(entries: Sequence[Mapping[str, Any] | str]) -> list[str]:
    """What DVC says has changed of a stage, as `params.yaml clean.min_contrast`."""
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            found.append(entry)
            continue
        for paths in entry.values():
            for path, what in paths.items() if isinstance(paths, Mapping) else ():
                inner = what if isinstance(what, Mapping) else {}
                found += [f"{path} {key}" for key in inner] or [path]
    return list(dict.fromkeys(found))
