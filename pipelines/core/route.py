"""The way of the samples through dvc.yaml: which stages they pass, in order, and what each leaves.

Stages that `python -m pipelines new` puts between `clean` and `shard` are found by what they read,
so a question about a sample, or about two versions of the data, is asked of all of them. Also what
dvc.lock remembers of a stage's last run. Opens dvc.lock alone, and no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import HeadraceError
from pipelines.core.project import Project, Stage, is_covered
from pipelines.core.typed import read_yaml

MANIFEST, SHARDS, DECODED = "manifest", "shards", "decoded"
"""What stages call their inputs: arguments of their commands."""


@dataclass(frozen=True)
class Route:
    """The stages that a sample passes, in their order.

    Attributes:
        ingest: brings the raw data, if a stage does.
        manifests: `clean`, then whatever filters its manifest; each writes `manifest/` and
            `rejected.parquet`.
        shard: packs the last manifest; writes `index.arrow` and `rejected.parquet`.
        decode: decodes the tars; writes the same two.
        readers: stages that read what `decode` writes, such as `train` and `evaluate`.
    """

    ingest: Stage | None
    manifests: tuple[Stage, ...]
    shard: Stage
    decode: Stage
    readers: tuple[Stage, ...]

    @property
    def rejecting(self) -> tuple[Stage, ...]:
        """The stages that may reject a sample."""
        return (*self.manifests, self.shard, self.decode)


def route(project: Project) -> Route:
    """The way of the samples, from the stage `decode` upwards.

    Raises:
        HeadraceError: there is no such stage, or one of them reads what no stage writes.
    """
    decode = project.stage("decode")
    shard = _writer(project, decode, SHARDS)
    manifests = [_writer(project, shard, MANIFEST)]
    # DVC refuses a circle, but not before somebody runs it.
    while MANIFEST in manifests[0].reads and len(manifests) <= len(project.stages):
        manifests.insert(0, _writer(project, manifests[0], MANIFEST))
    raw = manifests[0].reads.get("raw", "")
    return Route(
        ingest=next((stage for stage in project.stages if is_covered(raw, stage.outs)), None),
        manifests=tuple(manifests),
        shard=shard,
        decode=decode,
        readers=tuple(stage for stage in project.stages if out_of(decode) in stage.reads.values()),
    )


def out_of(stage: Stage) -> str:
    """The folder that a stage writes, as dvc.yaml has it."""
    return stage.arguments["out"]


def _writer(project: Project, reader: Stage, argument: str) -> Stage:
    """The stage that writes what `reader` is given as `--argument`."""
    path = reader.reads.get(argument)
    for stage in project.stages:
        if path is not None and "out" in stage.arguments and is_covered(path, [out_of(stage)]):
            return stage
    raise HeadraceError(
        f"Stage {reader.name} does not read what another stage writes.",
        where=f"{project.path}:stages.{reader.name}.cmd",
        expected=f"--{argument} with a folder that a stage writes",
        found=path or f"no --{argument}",
        fix="python -m pipelines check",
    )


@dataclass(frozen=True)
class Settings:
    """The params of a stage: as they are now, and as they were when it last ran.

    Attributes:
        now: its section of params.yaml.
        then: the same of dvc.lock; None where the stage has no entry there.
    """

    now: Mapping[str, Any]
    then: Mapping[str, Any] | None

    @property
    def used(self) -> Mapping[str, Any]:
        """Those that made what is there."""
        return self.now if self.then is None else self.then


def read_lock(path: Path = Path("dvc.lock")) -> Mapping[str, Any]:
    """What dvc.lock holds of each stage, by name; nothing where there is no such file."""
    stages = read_yaml(path).get("stages") if path.is_file() else None
    return stages if isinstance(stages, dict) else {}


def settings(stage: Stage, params: Mapping[str, Any], lock: Mapping[str, Any]) -> Settings:
    """The params of a stage, from all of params.yaml and from what `read_lock` gave."""
    then = _at(lock, stage.name, "params", "params.yaml", stage.name)
    now = params.get(stage.name)
    return Settings(now if isinstance(now, dict) else {}, then if isinstance(then, dict) else None)


def digest(lock: Mapping[str, Any], stage: str, kind: str, path: str) -> str | None:
    """The MD5 that dvc.lock has of a path.

    Args:
        lock: what `read_lock` gave.
        stage: a name.
        kind: `deps` or `outs`.
        path: as in dvc.yaml, with values in place of `${...}`.
    """
    entries = _at(lock, stage, kind)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("path") == path:
            md5 = entry.get("md5")
            return md5 if isinstance(md5, str) else None
    return None


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
