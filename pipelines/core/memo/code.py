"""Which code a function runs, so that a result is used again only under the code that made it.

Modules are followed through their imports, those inside functions too, as long as they are the
project's own; comments count, since telling them apart would cost more than it saves. What comes
from elsewhere is named, for `versions` to look up. A string that is the dotted name of a module
counts as an import. Nothing is executed. Costs about 3 ms a module.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

_OWN_ROOT = Path(__file__).parents[3]
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@dataclass(frozen=True)
class Code:
    """The code that some modules run.

    Attributes:
        digest: SHA-256 over the sources of the project's own modules.
        modules: their names.
        libraries: top-level names of what they import from elsewhere.
    """

    digest: str
    modules: frozenset[str]
    libraries: frozenset[str]


def modules_of(function: Callable[..., Any]) -> frozenset[str] | None:
    """The modules that define a function, and the functions bound to it by `functools.partial`.

    Returns:
        None where they cannot be told: a function made inside another holds values that are in no
        file.
    """
    parts = list(_parts(function))
    if not all(map(_is_importable, parts)):
        return None
    return frozenset(part.__module__ for part in parts)


def names_of(function: Callable[..., Any]) -> list[str]:
    """`module:name` of a function and of those bound to it, in their order."""
    return [f"{part.__module__}:{part.__qualname__}" for part in _parts(function)]


def _parts(function: Callable[..., Any]) -> Iterator[Any]:
    """A function and the functions bound to it."""
    if isinstance(function, functools.partial):
        for value in (function.func, *function.args, *function.keywords.values()):
            if callable(value):
                yield from _parts(value)
    else:
        yield function


def _is_importable(function: Any) -> bool:
    if not isinstance(function, FunctionType) or function.__module__ == "__main__":
        return False
    return getattr(sys.modules.get(function.__module__), function.__qualname__, None) is function


def read(modules: Iterable[str]) -> Code:
    """Follow the imports of `modules`, which are imported already."""
    names = frozenset(modules)
    roots = frozenset({_OWN_ROOT, *filter(None, map(_root_of, names))})
    pending, sources, libraries = list(names), dict[str, str](), set[str]()
    while pending:
        name = pending.pop()
        path = None if name in sources else _source(name, roots)
        if path is not None:
            data = path.read_bytes()
            sources[name] = hashlib.sha256(data).hexdigest()
            found = set(_imports(ast.parse(data), name, is_package=path.stem == "__init__"))
            pending += {parent for module in (name, *found) for parent in _with_parents(module)}
        elif "." not in name and name not in sources:
            libraries.add(name)
    text = "\n".join(f"{name} {sources[name]}" for name in sorted(sources))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Code(digest, frozenset(sources), frozenset(libraries - sys.stdlib_module_names))


def _root_of(module: str) -> Path | None:
    """The folder in which the import of a module begins."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).parents[module.count(".")] if file else None


def _source(module: str, roots: Iterable[Path]) -> Path | None:
    """The file of one of the project's own modules."""
    parts = module.split(".")
    for root in sorted(roots):
        for path in (
            root.joinpath(*parts, "__init__.py"),
            root.joinpath(*parts).with_suffix(".py"),
        ):
            if path.is_file():
                return path
    return None


def _with_parents(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]


def _imports(tree: ast.AST, module: str, *, is_package: bool) -> Iterator[str]:
    """Names that may be modules: each import, and each `name` of `from module import name`."""
    for node in _walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=stem, names=names, level=level):
                base = _absolute(stem or "", module, level - is_package) if level else stem or ""
                yield base
                yield from (f"{base}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)) if _DOTTED.fullmatch(text):
                yield text


def _absolute(stem: str, module: str, num_up: int) -> str:
    """What `from ..stem import` means in a module; `num_up` folders up from the module itself."""
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - num_up], *filter(None, [stem])])


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`, which never run."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        yield node
        pending += ast.iter_child_nodes(node)


def _name(node: ast.expr) -> str | None:
    """The last part of `name` or `module.name`."""
    return getattr(node, "id", None) or getattr(node, "attr", None)
