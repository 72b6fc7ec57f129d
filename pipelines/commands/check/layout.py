"""One name, four places: stage, module, section, test. And no Python among the data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipelines.commands.check.finding import Finding, Kind
from pipelines.commands.check.tree import DVC_YAML, Tree
from pipelines.core.project import Stage


def findings(tree: Tree) -> Iterator[Finding]:
    """All names that do not meet."""
    for stage in tree.stages:
        yield from _names(stage)
        if stage.module in tree.sources.files:
            yield from _entry(stage, tree)
        else:
            where = f"{DVC_YAML}:stages.{stage.name}.cmd"
            fix = f"write it, or see `python -m pipelines new {stage.name} --after STAGE`"
            yield Finding(where, Kind.MISSING_MODULE, str(stage.source), "no such file", fix)
        if not stage.test.is_file():
            where, expected = f"{DVC_YAML}:stages.{stage.name}", f"its test, {stage.test}"
            yield Finding(where, Kind.MISSING_TEST, expected, "no such file", "write it")
    yield from _orphans(tree)
    yield from _without_init(tree)
    for path in sorted(Path("datasets").rglob("*.py")):
        if not any(path.is_relative_to(folder) for folder in _made(tree)):
            fix = "move the code to pipelines/ or trainers/"
            yield Finding(str(path), Kind.PYTHON_IN_DATASETS, "data and cards only", "Python", fix)


def _names(stage: Stage) -> Iterator[Finding]:
    name = stage.module.rpartition(".")[2]
    if stage.name != name:
        where, expected = f"{DVC_YAML}:stages.{stage.name}", f"{name}, as its module {stage.module}"
        fix = "give stage, module, section of params.yaml and test one name"
        yield Finding(where, Kind.MISNAMED_STAGE, expected, stage.name, fix)


def _entry(stage: Stage, tree: Tree) -> Iterator[Finding]:
    started = tree.sources.started_as(stage.module)
    if started != stage.module:
        expected = f'a last line `stage.main("{stage.module}")` under `if __name__ == "__main__":`'
        found = f'main("{started}")' if started else "no such line"
        yield Finding(str(stage.source), Kind.BROKEN_MODULE, expected, found, "correct it")


def _orphans(tree: Tree) -> Iterator[Finding]:
    staged = {stage.module for stage in tree.stages}
    for module, path in tree.sources.files.items():
        if module.count(".") == 1 and module not in staged and tree.sources.has_params(module):
            expected = f"a stage in dvc.yaml whose command is `python -m {module} ...`"
            yield Finding(
                str(path), Kind.ORPHAN_MODULE, expected, "none", "add it, or remove the module"
            )


def _without_init(tree: Tree) -> Iterator[Finding]:
    roots = {path.parts[0] for path in tree.sources.files.values()}
    folders = {path.parent for root in roots for path in Path(root).rglob("*.py")}
    for folder in sorted(folders):
        if not (folder / "__init__.py").is_file():
            expected, fix = (
                f"{folder}/__init__.py",
                "add it, with a docstring that says what is in it",
            )
            yield Finding(str(folder), Kind.MISSING_INIT, expected, "no such file", fix)


def _made(tree: Tree) -> list[Path]:
    """Outputs: what is inside is data, whatever its ending."""
    return [path for text in tree.written if (path := tree.resolved(text)) is not None]
