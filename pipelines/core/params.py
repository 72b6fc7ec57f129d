"""Parameters: params.yaml as frozen, validated dataclasses that stand beside the code they steer.

A stage module declares `Params`; each field is a key of the stage's section in params.yaml, or,
marked `TOP_LEVEL`, a key at the top of the file (so that `dvc exp run -S lr=0.02` is as short as it
looks). No field has a default: params.yaml is the one place where values stand, and a key that is
missing there cannot be overridden by DVC either.
"""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, TypeVar

from pipelines.core import project
from pipelines.core.errors import did_you_mean
from pipelines.core.typed import describe, faults, faulty, field_names, read_yaml, validate
from pipelines.core.typed import typed as params

__all__ = ["TOP_LEVEL", "load", "params", "top_level_fields"]

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
    data, lines = _collect(cls, section, document)
    if data is not None:
        lines += faults(cls, data, prefix=f"{section}.")
    lines += _unknown_keys(document, path)
    if data is None or lines:
        tops = top_level_fields(cls)
        raise faulty(str(path), [_without_section(line, section, tops) for line in lines])
    return validate(cls, data, where=str(path))


def _collect(
    cls: type[Any], section: str, document: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[str]]:
    """The data of one stage from both places (None.

    Its section is no mapping), and the faults of where it stands.
    """
    tops = top_level_fields(cls)
    body = document.get(section)
    if body is None:
        body = {}
    if not isinstance(body, dict):
        return None, [f"{section}: expected a mapping, found {describe(body)}"]
    misplaced = [
        f"{section}.{name}: belongs at the top of the file, not in {section}:"
        for name in body
        if name in tops
    ]
    inside = {str(name): value for name, value in body.items() if name not in tops}
    return inside | {name: document[name] for name in tops if name in document}, misplaced


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


def _without_section(line: str, section: str, tops: tuple[str, ...]) -> str:
    """Show a top-level key by the name that it has in the file."""
    key, colon, rest = line.removeprefix(f"{section}.").partition(":")
    return f"{key}{colon}{rest}" if key in tops and "belongs at the top" not in rest else line
