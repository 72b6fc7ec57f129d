"""What a stage is: the one description that the runner, `check` and `new` share.

A stage is a block of dvc.yaml whose command is `python -m MODULE --name path ...`. Its name is the
module's last part and its section of params.yaml; `--out` (and `--report`) are what it writes,
every other argument is what it reads. Paths keep their `${...}` as written: comparing a stage with
itself needs no values.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import HeadraceError
from pipelines.core.typed import read_yaml

WRITTEN = ("out", "report")
"""The arguments of a stage's command that name what it writes."""

_INTERPOLATION = re.compile(r"\$\{\s*([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Stage:
    """One block of dvc.yaml."""

    name: str
    cmd: str
    module: str
    arguments: Mapping[str, str]
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    metrics: tuple[str, ...]
    plots: tuple[str, ...]
    params: tuple[str, ...]

    @property
    def source(self) -> Path:
        """The module's file, relative to the repository."""
        return Path(*self.module.split(".")).with_suffix(".py")

    @property
    def test(self) -> Path:
        """The module's mirror test file."""
        *folders, name = self.module.split(".")
        return Path("tests", *folders, f"test_{name}.py")

    @property
    def reads(self) -> dict[str, str]:
        """Arguments that name inputs."""
        return {name: path for name, path in self.arguments.items() if name not in WRITTEN}

    @property
    def writes(self) -> tuple[str, ...]:
        """All declared outputs: outs, metrics and plots."""
        return (*self.outs, *self.metrics, *self.plots)


@dataclass(frozen=True)
class Project:
    """The stages of dvc.yaml, in its order."""

    path: Path
    stages: tuple[Stage, ...]
    interpolated: frozenset[str]

    @property
    def top_level_keys(self) -> frozenset[str]:
        """Keys of params.yaml that are tracked by a stage or interpolated in dvc.yaml."""
        tracked = {entry.split(".")[0] for stage in self.stages for entry in stage.params}
        return frozenset(tracked | self.interpolated)

    def stage(self, name: str) -> Stage:
        """The stage of that name.

        Raises:
            HeadraceError: there is none.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        names = ", ".join(stage.name for stage in self.stages)
        raise HeadraceError(
            f"There is no stage {name!r}.", where=str(self.path), expected=f"one of {names}"
        )


def read(path: Path = Path("dvc.yaml")) -> Project:
    """Read dvc.yaml.

    Raises:
        HeadraceError: the file is missing or not YAML, or a command is not of the form above.
    """
    document = read_yaml(path)
    blocks = document.get("stages")
    if not isinstance(blocks, dict):
        raise HeadraceError("dvc.yaml has no stages.", where=f"{path}:stages")
    stages = tuple(_stage(name, block, path) for name, block in blocks.items())
    return Project(
        path, stages, frozenset(_INTERPOLATION.findall(path.read_text(encoding="utf-8-sig")))
    )


def _stage(name: str, block: Mapping[str, Any], path: Path) -> Stage:
    cmd = block.get("cmd")
    where = f"{path}:stages.{name}.cmd"
    if not isinstance(cmd, str):
        raise HeadraceError(f"Stage {name} needs one command.", where=where, found=repr(cmd))
    match shlex.split(cmd):
        case ["python", "-m", module, *rest] if len(rest) % 2 == 0 and all(
            flag.startswith("--") for flag in rest[::2]
        ):
            arguments = {flag[2:]: value for flag, value in zip(rest[::2], rest[1::2], strict=True)}
        case _:
            raise HeadraceError(
                f"Stage {name} has a command of another form.",
                where=where,
                expected="python -m MODULE --name path ... --out path",
                found=cmd,
            )
    return Stage(
        name=name,
        cmd=cmd,
        module=module,
        arguments=arguments,
        deps=_paths(block.get("deps", ())),
        outs=_paths(block.get("outs", ())),
        metrics=_paths(block.get("metrics", ())),
        plots=_paths(block.get("plots", ())),
        params=tuple(str(entry) for entry in block.get("params", ())),
    )


def _paths(entries: Iterable[Any]) -> tuple[str, ...]:
    """The paths of a list whose items are `path` or `path: {options}`."""
    return tuple(next(iter(entry)) if isinstance(entry, dict) else str(entry) for entry in entries)
