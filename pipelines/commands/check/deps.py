"""Do the deps of every stage name all code it runs, its libraries, and nothing else?"""

from __future__ import annotations

from collections.abc import Iterator

from pipelines.commands.check.finding import Finding, Kind
from pipelines.commands.check.tree import DVC_YAML, LOCK, Tree
from pipelines.core.project import Stage, is_covered


def findings(tree: Tree) -> Iterator[Finding]:
    """All that is missing from deps or should not be there."""
    for stage in tree.stages:
        where = f"{DVC_YAML}:stages.{stage.name}.deps"
        if stage.module in tree.sources.files:
            yield from _imports(stage, tree, where)
            yield from _needless(stage, tree, where)
        yield from _missing(stage, tree, where)
        if LOCK not in stage.deps:
            found = "a stage that keeps its old output when a library changes"
            yield Finding(where, Kind.UNPINNED_STAGE, LOCK, found, f"add `- {LOCK}`")


def _imports(stage: Stage, tree: Tree, where: str) -> Iterator[Finding]:
    for module in sorted(tree.code_of(stage)):
        path = str(tree.sources.files[module])
        if not tree.sources.is_blank(module) and not is_covered(path, stage.deps):
            found = f"code that runs in it and is not listed: {_way(stage.module, module, tree)}"
            yield Finding(where, Kind.UNDECLARED_IMPORT, path, found, f"add `- {path}`")
    for file in sorted(tree.named_files(stage)):
        if not is_covered(str(file), stage.deps):
            found = f"code that params.yaml:{stage.name} names and deps do not"
            yield Finding(where, Kind.UNDECLARED_IMPORT, str(file), found, f"add `- {file}`")


def _way(start: str, end: str, tree: Tree) -> str:
    """How `start` comes to import `end`."""
    chain = None if start == end else tree.sources.graph.find_shortest_chain(start, end)
    return " > ".join(chain or dict.fromkeys((start, end)))


def _needless(stage: Stage, tree: Tree, where: str) -> Iterator[Finding]:
    used = {tree.sources.files[module] for module in tree.code_of(stage)} | tree.named_files(stage)
    for dep in stage.deps:
        if _is_code(dep, tree) and not any(is_covered(str(path), [dep]) for path in used):
            expected = f"only code that {stage.module} imports"
            yield Finding(where, Kind.NEEDLESS_DEP, expected, dep, "remove the entry")


def _is_code(dep: str, tree: Tree) -> bool:
    if is_covered(dep, tree.written):
        return False
    path = tree.resolved(dep)
    if path is None or not path.is_dir():
        return path is not None and path.suffix == ".py" and path.is_file()
    return any(path.rglob("*.py"))


def _missing(stage: Stage, tree: Tree, where: str) -> Iterator[Finding]:
    for dep in stage.deps:
        path = tree.resolved(dep)
        if path is not None and not path.exists() and not is_covered(dep, tree.written):
            expected = f"{path}, as a file of the repository or an output of a stage"
            yield Finding(
                where,
                Kind.MISSING_DEP,
                expected,
                "neither",
                "correct the path, or remove the entry",
            )
