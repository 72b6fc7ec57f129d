"""Parameters: params.yaml as frozen, validated dataclasses that stand beside the code they steer.

A stage module declares `Params`; each field is a key of the stage's section in params.yaml, or,
marked `TOP_LEVEL`, a key at the top of the file (so that `dvc exp run -S lr=0.02` is as short as it
looks). No field has a default: params.yaml is the one place where values stand, and a key that is
missing there cannot be overridden by DVC either.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipelines.core import project
from pipelines.core.errors import did_you_mean
from pipelines.core.typed import describe, faults, faulty, field_names, read_yaml, validate
from pipelines.core.typed import typed as params

__all__ = ["TOP_LEVEL", "load", "params", "section_faults", "top_level_fields"]

T = TypeVar("T")


class _TopLevel:
    def __repr__(self) -> str:
        return "TOP_LEVEL"


TOP_LEVEL = _TopLevel()
"""Marks a field whose key stands at the top of params.yaml.

`lr: Annotated[float, Field(gt=0), TOP_LEVEL]`.
"""


def top_level_fields(cls: type[Any]) -> tuple[str, ...]:
    """Names of the fields marked `TOP_LEVEL`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        name for name in field_names(cls) if TOP_LEVEL in getattr(hints[name], "__metadata__", ())
    )


def load(cls: type[T], section: str, path: Path = Path("params.yaml")) -> T:
    """Read the parameters of one stage.

    The whole file is looked at: a key at the top that no stage of dvc.yaml tracks is an error too,
    whichever stage runs.

    Args:
        cls: the stage's `Params`.
        section: the stage's name, which is its section.
        path: params.yaml; dvc.yaml is looked for beside it.

    Raises:
        HeadraceError: with every fault of the file that concerns this stage.
    """
    document = read_yaml(path)
    lines = section_faults(cls, section, document) + _unknown_keys(document, path)
    if lines:
        raise faulty(str(path), lines)
    return validate(cls, _collect(cls, section, document), where=str(path))


def section_faults(cls: type[Any], section: str, document: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with one stage's keys, wherever they stand.

    Args:
        cls: the stage's `Params`.
        section: its name.
        document: all of params.yaml.

    Returns:
        Lines `key: expected ..., found ...`, with the key as it is in the file.
    """
    body = _body(document, section)
    if not isinstance(body, dict):
        return [f"{section}: expected a mapping, found {describe(body)}"]
    tops = top_level_fields(cls)
    misplaced = [
        f"{section}.{name}: belongs at the top of the file, not in {section}:"
        for name in body
        if name in tops
    ]
    found = faults(cls, _collect(cls, section, document), prefix=f"{section}.")
    return misplaced + [_as_written(line, section, tops) for line in found]


def _body(document: Mapping[str, Any], section: str) -> Any:
    """What stands under `section:`; a section without keys is an empty one."""
    body = document.get(section)
    return {} if body is None else body


def _collect(cls: type[Any], section: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The data of one stage from both places."""
    tops = top_level_fields(cls)
    body = _body(document, section)
    inside = {str(name): value for name, value in body.items() if name not in tops}
    return inside | {name: document[name] for name in tops if name in document}


def _unknown_keys(document: dict[str, Any], path: Path) -> list[str]:
    dvc_yaml = path.with_name("dvc.yaml")
    if not dvc_yaml.exists():
        return []
    known = project.read(dvc_yaml).top_level_keys
    return [
        f"{key}: unknown key, no stage of dvc.yaml tracks it.{did_you_mean(key, known)}"
        for key in document
        if key not in known
    ]


def _as_written(line: str, section: str, tops: tuple[str, ...]) -> str:
    """Show a top-level key by the name that it has in the file."""
    short = line.removeprefix(f"{section}.")
    return short if short.partition(":")[0] in tops else line
