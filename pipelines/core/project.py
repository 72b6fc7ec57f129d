"""What a stage is: the one description that the runner, `check` and `new` share.

A stage is a block of dvc.yaml whose command is `python -m MODULE --name path ...`. Its name is the
module's last part and its section of params.yaml; `--out` (and `--report`) are what it writes,
every other argument is what it reads. Paths keep their `${...}` as written: comparing a stage with
itself needs no values, `resolved` fills them in where a file is looked for, and `is_covered` takes
one for any one folder name, so that a question about one dataset is answered for all.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.core.errors import HeadraceError
from pipelines.core.typed import describe, read_yaml

WRITTEN = ("out", "report")
"""The arguments of a stage's command that name what it writes."""

_INTERPOLATION = re.compile(r"\$\{\s*([A-Za-z_]\w*)([^}]*)\}")
_ANY_NAME = "[^/]+"


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
    uncached: frozenset[str]
    """Those of `writes` that say `cache: false`: their place is in git."""

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

    def tracks(self, key: str) -> bool:
        """Whether a change of this key of params.yaml (`lr`, `train.epochs`) re-runs the stage."""
        parts = key.split(".")
        return any(".".join(parts[:length]) in self.params for length in range(1, len(parts) + 1))


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


def is_covered(path: str, by: Iterable[str]) -> bool:
    """Whether `path` is one of the paths of `by` or lies below one; a `${...}` fits any name."""
    return any(re.fullmatch(f"{_pattern(cover)}(/.*)?", path) for cover in by)


def _pattern(path: str) -> str:
    """A regular expression for the paths that `path` can stand for, itself among them."""
    parts = _INTERPOLATION.split(path.rstrip("/"))
    return _ANY_NAME.join(re.escape(part) for part in parts[:: _INTERPOLATION.groups + 1])


def resolved(path: str, values: Mapping[str, Any]) -> str:
    """`path` with `${key}` and `${key.key}` replaced; what `values` lacks stays as written."""

    def value(found: re.Match[str]) -> str:
        inner: Any = values
        for part in (found[1] + found[2]).strip().split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        return found[0] if inner is None else str(inner)

    return _INTERPOLATION.sub(value, path)


def read(path: Path = Path("dvc.yaml")) -> Project:
    """Read dvc.yaml.

    Raises:
        HeadraceError: the file is missing or not YAML, or a block or command is not of the form
            above.
    """
    document = read_yaml(path)
    blocks = document.get("stages")
    if not isinstance(blocks, dict):
        raise HeadraceError("dvc.yaml has no stages.", where=f"{path}:stages")
    stages = tuple(_stage(name, block, path) for name, block in blocks.items())
    keys = {found[0] for found in _INTERPOLATION.findall(path.read_text(encoding="utf-8-sig"))}
    return Project(path, stages, frozenset(keys))


def _stage(name: str, block: Any, path: Path) -> Stage:
    where = f"{path}:stages.{name}"
    if not isinstance(block, dict) or not isinstance(block.get("cmd"), str):
        raise HeadraceError(
            f"Stage {name} needs one command.", where=f"{where}.cmd", found=describe(block)
        )
    lists = {
        key: _list(block, key, where) for key in ("deps", "outs", "metrics", "plots", "params")
    }
    for entry in lists["params"]:
        if not isinstance(entry, str):
            raise HeadraceError(
                f"Stage {name} tracks params of another file.",
                where=f"{where}.params",
                expected="keys of params.yaml",
                found=describe(entry),
            )
    module, arguments = _command(name, block["cmd"], where)
    writes = [*lists["outs"], *lists["metrics"], *lists["plots"]]
    return Stage(
        name=name,
        cmd=block["cmd"],
        module=module,
        arguments=arguments,
        deps=_paths(lists["deps"]),
        outs=_paths(lists["outs"]),
        metrics=_paths(lists["metrics"]),
        plots=_paths(lists["plots"]),
        params=tuple(lists["params"]),
        uncached=frozenset(_paths(entry for entry in writes if _is_uncached(entry))),
    )


def _command(name: str, cmd: str, where: str) -> tuple[str, dict[str, str]]:
    """The module and the arguments of a stage's command."""
    match _words(cmd):
        case ["python", "-m", module, *rest] if len(rest) % 2 == 0 and all(
            flag.startswith("--") for flag in rest[::2]
        ):
            pairs = zip(rest[::2], rest[1::2], strict=True)
            return module, {flag.removeprefix("--"): value for flag, value in pairs}
        case _:
            raise HeadraceError(
                f"Stage {name} has a command of another form.",
                where=f"{where}.cmd",
                expected="python -m MODULE --name path ... --out path",
                found=cmd,
            )


def _words(cmd: str) -> list[str]:
    """What a shell would take for the words of a command; none where a quote is not closed."""
    try:
        return shlex.split(cmd)
    except ValueError:
        return []


def _list(block: Mapping[str, Any], key: str, where: str) -> list[Any]:
    entries = block.get(key) or []
    if not isinstance(entries, list):
        raise HeadraceError(f"`{key}` must be a list.", where=where, found=describe(entries))
    return entries


def _paths(entries: Iterable[Any]) -> tuple[str, ...]:
    """The paths of a list whose items are `path` or `path: {options}`."""
    return tuple(next(iter(entry)) if isinstance(entry, dict) else str(entry) for entry in entries)


def _is_uncached(entry: Any) -> bool:
    options = next(iter(entry.values()), None) if isinstance(entry, dict) else None
    return isinstance(options, dict) and options.get("cache") is False
