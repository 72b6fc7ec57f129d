"""Adding to a YAML file and leaving every other byte of it as it is.

Comments, order, quotes and line breaks of a file that people keep by hand survive no load and dump
unharmed. So ruamel.yaml only says at which line a block ends; the text is put in there, and the
result is read back and compared with what it should say.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipelines.core.errors import HeadraceError


def inserted(text: str, after: tuple[str, ...], block: str) -> str:
    """`text` with a block as the next sibling of the one that the keys `after` lead to.

    Args:
        text: a YAML file in block style.
        after: keys from the top, such as `("stages", "clean")`.
        block: lines without indentation; gets that of its sibling, and an empty line before it
            where its sibling has one.
    """
    lines = _lines(text)
    start, end, indent = _extent(text, after)
    block_lines = _lines(textwrap.indent(block, " " * indent))
    is_spaced = lines[end : end + 1] == [""] or _is_spaced(lines, start)
    return "\n".join([*lines[:end], *[""] * is_spaced, *block_lines, *lines[end:], ""])


def replaced(text: str, within: tuple[str, ...], old: str, new: str) -> str:
    """`text` with the path `old` replaced in one block, but for its comments."""
    lines = _lines(text)
    start, end, _ = _extent(text, within)
    whole_path = re.compile(rf"(?<![\w./${{}}-]){re.escape(old)}(?![\w./-])")
    for number in range(start, end):
        if not lines[number].lstrip().startswith("#"):
            lines[number] = whole_path.sub(lambda _: new, lines[number])
    return "\n".join([*lines, ""])


def loaded(text: str) -> Any:
    """What a YAML text says."""
    return YAML(typ="safe", pure=True).load(text)


def check_says(text: str, expected: Mapping[str, Any], name: str) -> None:
    """Hold a text to what it should say, keys in order.

    Raises:
        HeadraceError: it says something else, since the file is written in an unusual way.
    """
    try:
        said = loaded(text)
    except YAMLError:
        said = None
    if said != expected or _order(said) != _order(expected):
        raise HeadraceError(
            f"{name} is written in a way that nothing can be added to by a program.",
            where=name,
            expected="one key a line, in block style",
            fix="write it so, and start again; nothing was written",
        )


def _order(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [(key, _order(item)) for key, item in value.items()]
    return [_order(item) for item in value] if isinstance(value, list) else value


def _lines(text: str) -> list[str]:
    """Lines as YAML counts them: `splitlines` knows more line ends."""
    return text.removesuffix("\n").split("\n")


def _extent(text: str, keys: tuple[str, ...]) -> tuple[int, int, int]:
    """First line of a block, the line behind its last one with content, and its indentation."""
    node = YAML().load(text)
    starts: list[int] = []
    line = indent = 0
    for key in keys:
        starts += [node.lc.key(sibling)[0] for sibling in node]
        line, indent = node.lc.key(key)
        node = node[key]
    lines = _lines(text)
    end = min((start for start in starts if start > line), default=len(lines))
    while end > line + 1 and _belongs_to_next(lines[end - 1], indent):
        end -= 1
    return line, end, indent


def _belongs_to_next(line: str, indent: int) -> bool:
    """Whether it is empty, or a comment no deeper than the keys."""
    bare = line.lstrip()
    return not bare or (bare.startswith("#") and len(line) - len(bare) <= indent)


def _is_spaced(lines: list[str], start: int) -> bool:
    """Whether an empty line stands before a block and its comments."""
    while start > 0 and lines[start - 1].lstrip().startswith("#"):
        start -= 1
    return start > 0 and not lines[start - 1].strip()
