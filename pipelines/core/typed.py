"""YAML in, a typed and frozen dataclass out, and every fault told at once.

Read with ruamel.yaml, the YAML 1.2 parser that DVC itself uses: `dvc exp run -S lr=1e-5` writes
`lr: 1e-05`, a float to YAML 1.2 and a string to PyYAML. Checked by pydantic in strict mode: no
string is turned into a number, no number into a flag, no unknown key is passed over.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

import pydantic.dataclasses
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from pipelines.core.errors import HeadraceError, did_you_mean

T = TypeVar("T")

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def typed(cls: type[T]) -> type[T]:
    """Make a class a frozen, keyword-only dataclass whose values are checked when it is made."""
    decorate = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)
    return decorate(cls)  # type: ignore[return-value]


def read_yaml(path: Path, *, fix: str | None = None) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        HeadraceError: no such file, not readable, not UTF-8, not YAML (a tab, a key twice) or no
            mapping; with line and column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise HeadraceError(f"There is no {path.name}.", where=str(path), fix=fix) from None
    except UnicodeDecodeError as error:
        raise HeadraceError(
            f"{path.name} is not UTF-8 text.", where=str(path), found=str(error)
        ) from None
    except OSError as error:  # A folder of that name, or one that may not be read.
        raise HeadraceError(
            f"{path.name} cannot be read.", where=str(path), found=error.strerror, fix=fix
        ) from None
    try:
        loaded = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise HeadraceError(
            f"{path.name} is not valid YAML.", where=where, found=_problem(error)
        ) from None
    # ruamel.yaml lets Python's own errors through: for a 13th month, a tag `!!int` before a word,
    # thousands of brackets.
    except (YAMLError, ValueError, RecursionError) as error:
        raise HeadraceError(
            f"{path.name} is not valid YAML.", where=str(path), found=str(error)
        ) from None
    if not isinstance(loaded, dict):
        raise HeadraceError(
            f"{path.name} must hold a mapping (`key: value` lines).",
            where=str(path),
            found=describe(loaded),
        )
    for odd in (key for key in loaded if not isinstance(key, str)):
        raise HeadraceError(
            f"Keys of {path.name} must be text.", where=f"{path}:{odd}", found=describe(odd)
        )
    return loaded


def _problem(error: MarkedYAMLError) -> str:
    problem = str(error.problem or error.context)
    if "\\t" in problem:
        return "a tab where YAML wants spaces"
    return problem.splitlines()[0]


def field_names(cls: type[Any]) -> tuple[str, ...]:
    """The names of a dataclass's fields, in order."""
    return tuple(field.name for field in dataclasses.fields(cls))


def faults(cls: type[Any], data: Mapping[str, Any], *, prefix: str = "") -> list[str]:
    """Everything that is wrong with `data` as a `cls`.

    One line a fault, `key: expected ..., found ...`; empty if all is well.
    """
    try:
        TypeAdapter(cls).validate_json(_json(data))
    except ValidationError as error:
        return [_line(cls, detail, prefix) for detail in error.errors(include_url=False)]
    return []


def validate(cls: type[T], data: Mapping[str, Any], *, where: str, prefix: str = "") -> T:
    """`data` as a `cls`.

    Args:
        cls: made by `typed`.
        data: as YAML or JSON holds it: lists stand for tuples.
        where: the file, for the message.
        prefix: put before each key in the message, such as `train.`.

    Raises:
        HeadraceError: naming each fault: key, what was expected and what was found.
    """
    found = faults(cls, data, prefix=prefix)
    if found:
        raise faulty(where, found)
    return TypeAdapter(cls).validate_json(_json(data))


def faulty(where: str, lines: Iterable[str]) -> HeadraceError:
    """One error for all faults of a file."""
    found = list(lines)
    count = "one fault" if len(found) == 1 else f"{len(found)} faults"
    return HeadraceError("\n".join([f"{where} has {count}:", *(f"  {line}" for line in found)]))


def describe(value: Any) -> str:
    """A value and its kind, for a person: `'fast' (text)`."""
    kinds = {
        bool: "true/false",
        int: "a whole number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
    }
    if value is None:
        return "nothing"
    text = repr(value)
    short = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{short} ({kinds.get(type(value), type(value).__name__)})"


def _json(data: Mapping[str, Any]) -> str:
    # JSON mode is what makes pydantic's strictness fit YAML: a list may become a tuple, but "1"
    # never a number.
    return json.dumps(data, default=str, allow_nan=True)


def _line(cls: type[Any], detail: ErrorDetails, prefix: str) -> str:
    key = prefix + ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "missing" | "missing_keyword_only_argument":
            return f"{key}: missing, expected a value"
        case "unexpected_keyword_argument":
            siblings = field_names(cls) if len(detail["loc"]) == 1 else ()
            return f"{key}: unknown key.{did_you_mean(str(detail['loc'][-1]), siblings)}"
        case "value_error":
            return f"{key.rstrip('.')}: {detail['msg'].removeprefix('Value error, ')}"
        case "dataclass_type":
            return f"{key}: expected a mapping, found {describe(detail['input'])}"
        case _:
            expected = detail["msg"].removeprefix("Input should be ")
            return f"{key}: expected {expected}, found {describe(detail['input'])}"
