"""The project's own code as `check` sees it: who imports whom, and what is read where.

Imports come from grimp, which sees those inside functions too, and leaves out those under
`if TYPE_CHECKING:`, which never run. A string that is the dotted name of a module counts as an
import: that is how a module reaches `import_module`, `torchrun -m` or a process pool. Nothing is
executed here. Costs a tenth of a second for a hundred modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grimp

from pipelines.core.errors import HeadraceError


@dataclass(frozen=True)
class Sources:
    """The modules of some packages.

    Attributes:
        graph: who imports whom.
        files: the source file of each module, relative to the repository.
        trees: the syntax tree of each module.
    """

    graph: grimp.ImportGraph
    files: Mapping[str, Path]
    trees: Mapping[str, ast.Module]

    def imported_by(self, module: str) -> set[str]:
        """All modules that run with `module`: itself, its imports, theirs, and their packages."""
        found: set[str] = set()
        pending = [module]
        while pending:
            name = pending.pop()
            if name in self.files and name not in found:
                found.add(name)
                pending += self.graph.find_modules_directly_imported_by(name)
                pending += self._named_in(name)
                pending.append(name.rpartition(".")[0])
        return found

    def _named_in(self, module: str) -> Iterator[str]:
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value.partition(":")[0]
                if "." in name and name in self.files:
                    yield name

    def is_blank(self, module: str) -> bool:
        """Whether it holds no code: an `__init__.py` with nothing but a docstring."""
        return not [node for node in self.trees[module].body if not _is_docstring(node)]

    def attributes_read(self, modules: Iterable[str]) -> set[str]:
        """Every `name` of an `x.name` that is read in these modules.

        What a validator of Params reads does not count: it judges the value, and that is all.
        """
        return {
            node.attr
            for module in modules
            for node in _walk_without_validators(self.trees[module])
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        }

    def has_params(self, module: str) -> bool:
        """Whether the module defines a class `Params`."""
        return any(
            isinstance(node, ast.ClassDef) and node.name == "Params"
            for node in self.trees[module].body
        )

    def started_as(self, module: str) -> str | None:
        """The module name that its `main("...")` call under the usual guard hands on, if any."""
        for node in self.trees[module].body:
            if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
                for call in ast.walk(node):
                    match call:
                        case ast.Call(
                            func=ast.Attribute(attr="main") | ast.Name(id="main"),
                            args=[ast.Constant(value=str(name)), *_],
                        ):
                            return name
        return None


def read(packages: Iterable[str]) -> Sources:
    """Read those of the packages that are in the current folder.

    A folder inside without an `__init__.py` is left out: grimp does not see it.

    Raises:
        HeadraceError: a file that is not Python, with its line.
    """
    files: dict[str, Path] = {}
    roots = sorted(name for name in set(packages) if Path(name, "__init__.py").is_file())
    for path in (path for name in roots for path in sorted(Path(name).rglob("*.py"))):
        parts = path.with_suffix("").parts
        if path.with_name("__init__.py").is_file():
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    trees = {name: _parsed(path) for name, path in files.items()}
    graph = (
        grimp.build_graph(*roots, cache_dir=None, exclude_type_checking_imports=True)
        if roots
        else grimp.ImportGraph()
    )
    return Sources(graph, files, trees)


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise HeadraceError(
            f"{path} is not Python.",
            where=f"{path}:{line}",
            found=getattr(error, "msg", str(error)),
        ) from None


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _walk_without_validators(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.FunctionDef) and _is_validator(child)):
            yield from _walk_without_validators(child)


def _is_validator(function: ast.FunctionDef) -> bool:
    decorators = " ".join(ast.unparse(decorator) for decorator in function.decorator_list)
    return function.name == "__post_init__" or "validator" in decorators
