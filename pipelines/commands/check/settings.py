"""Do params.yaml, the stages' Params and `params:` in dvc.yaml say the same?

Imports each stage's module for its Params (torch for those of `trainers`: two seconds).
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import typing
from collections.abc import Iterator
from typing import Any

from pipelines.commands.check.finding import Finding, Kind
from pipelines.commands.check.tree import DVC_YAML, PARAMS_YAML, Tree
from pipelines.core.errors import did_you_mean
from pipelines.core.params import section_faults, top_level_fields
from pipelines.core.project import Stage
from pipelines.core.typed import describe, field_names

# Not a dot at the front: `..` would lead out of datasets/, and git and DVC pass over `.tmp-`.
_PLAIN_NAME = re.compile(r"[\w-][\w.-]*")


def findings(tree: Tree) -> Iterator[Finding]:
    """All that is out of step between the three."""
    used_tops = set(tree.project.interpolated)
    for stage in tree.present():
        cls = _params_of(stage)
        if isinstance(cls, Finding):
            yield cls
            continue
        used_tops.update(top_level_fields(cls))
        yield from _values(stage, cls, tree)
        yield from _tracking(stage, cls)
        yield from _reading(stage, cls, tree)
    yield from _top_level(tree, used_tops)


def _params_of(stage: Stage) -> type[Any] | Finding:
    """The stage's Params, or what is wrong with its module."""

    def broken(found: str) -> Finding:
        expected = "a module with a class Params made by @params and a function run(job)"
        fix = f"see that `python -c 'import {stage.module}'` works and that both are there"
        return Finding(str(stage.source), Kind.BROKEN_MODULE, expected, found, fix)

    try:
        module = importlib.import_module(stage.module)
    except Exception as error:  # noqa: BLE001 - a module may raise anything while it is imported
        return broken(f"{type(error).__name__} on importing it: {error}")
    cls = getattr(module, "Params", None)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        return broken("no such Params")
    if not callable(getattr(module, "run", None)):
        return broken("no such run")
    return cls


def _values(stage: Stage, cls: type[Any], tree: Tree) -> Iterator[Finding]:
    for line in section_faults(cls, stage.name, tree.values):
        key, _, rest = line.partition(": ")
        where = f"{PARAMS_YAML}:{key}"
        if rest.startswith("missing"):
            fix = "add the key with a value"
            yield Finding(where, Kind.MISSING_PARAM, _kind_of_value(cls, key), "no such key", fix)
        elif rest.startswith("unknown key"):
            fix = f"remove the key, or add the field to {stage.source}:Params"
            expected = f"a field of {stage.source}:Params"
            found = f"no such field{_aside(rest.removeprefix('unknown key.'))}"
            yield Finding(where, Kind.UNTYPED_PARAM, expected, found, fix)
        else:
            expected, comma, found = rest.removeprefix("expected ").rpartition(", found ")
            if not comma:  # A rule of the stage's own, in its own words.
                expected, found = "what Params allows", rest
            yield Finding(where, Kind.WRONG_PARAM, expected, found, "correct the value")


def _kind_of_value(cls: type[Any], key: str) -> str:
    hint = typing.get_type_hints(cls).get(key.rpartition(".")[2])
    return f"a value ({getattr(hint, '__name__', hint)})" if hint else "a value"


def _aside(hint: str) -> str:
    """` Did you mean 'x'?` in brackets, for the middle of a line."""
    return f" ({hint[1].lower()}{hint[2:]})" if hint else ""


def _tracking(stage: Stage, cls: type[Any]) -> Iterator[Finding]:
    tops = set(top_level_fields(cls))
    keys = [name if name in tops else f"{stage.name}.{name}" for name in field_names(cls)]
    where = f"{DVC_YAML}:stages.{stage.name}.params"
    listed = ", ".join(stage.params) or "an empty list"
    for key in keys:
        if not stage.tracks(key):
            entry = key.partition(".")[0]
            yield Finding(where, Kind.UNTRACKED_PARAM, key, listed, f"add `- {entry}`")
    for entry in stage.params:
        if not any(
            f"{key}.".startswith(f"{entry}.") or f"{entry}.".startswith(f"{key}.") for key in keys
        ):
            expected = f"only keys of {stage.source}:Params"
            found = f"{entry}{_aside(did_you_mean(entry, keys))}"
            yield Finding(where, Kind.NEEDLESS_PARAM, expected, found, "remove the entry")


def _reading(stage: Stage, cls: type[Any], tree: Tree) -> Iterator[Finding]:
    tops = set(top_level_fields(cls))
    read = tree.sources.attributes_read(tree.code_of(stage))
    for path in _fields(cls):
        if path[-1] not in read:
            key = ".".join(path if path[0] in tops else (stage.name, *path))
            yield Finding(
                f"{PARAMS_YAML}:{key}",
                Kind.UNUSED_PARAM,
                f"{stage.source} or what it imports to read `.{path[-1]}`",
                "nothing that reads it",
                f"use it, or remove the key and the field of {stage.source}:Params",
            )


def _fields(cls: type[Any]) -> Iterator[tuple[str, ...]]:
    """The paths of all fields, those of nested dataclasses included."""
    hints = typing.get_type_hints(cls)
    for name in field_names(cls):
        yield (name,)
        if dataclasses.is_dataclass(hints[name]) and isinstance(hints[name], type):
            yield from ((name, *below) for below in _fields(hints[name]))


def _top_level(tree: Tree, used: set[str]) -> Iterator[Finding]:
    """Keys at the top: of some stage, and there if dvc.yaml interpolates them."""
    sections = {stage.name for stage in tree.stages}
    for key, value in tree.values.items():
        if key not in used | sections:
            expected = "the name of a stage, or a TOP_LEVEL field of one"
            near = _aside(did_you_mean(key, used | sections))
            found = f"{describe(value)}, which nothing reads{near}"
            where = f"{PARAMS_YAML}:{key}"
            yield Finding(where, Kind.UNUSED_PARAM, expected, found, "remove or rename the key")
    for key in sorted(tree.project.interpolated - tree.values.keys()):
        expected = f"a value for ${{{key}}} in dvc.yaml"
        where = f"{PARAMS_YAML}:{key}"
        yield Finding(
            where, Kind.MISSING_PARAM, expected, "no such key", "add the key with a value"
        )
    for key in sorted(tree.project.interpolated & tree.values.keys()):
        value = tree.values[key]
        if not isinstance(value, str) or not _PLAIN_NAME.fullmatch(value):
            expected = f"one plain name, as ${{{key}}} stands for it in paths and commands"
            fix = "write letters, digits, `_`, `-` and `.` only"
            where = f"{PARAMS_YAML}:{key}"
            yield Finding(where, Kind.WRONG_PARAM, expected, describe(value), fix)
