"""What all rules of `check` look at, read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.commands.check import sources
from pipelines.commands.check.sources import Sources
from pipelines.core import project
from pipelines.core.project import Project, Stage
from pipelines.core.typed import read_yaml

PACKAGES = ("pipelines", "trainers")
DVC_YAML, PARAMS_YAML, LOCK = "dvc.yaml", "params.yaml", "requirements.lock"


@dataclass(frozen=True)
class Tree:
    """The repository in the current folder.

    Attributes:
        project: dvc.yaml.
        values: params.yaml.
        sources: the code.
    """

    project: Project
    values: Mapping[str, Any]
    sources: Sources

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order of dvc.yaml."""
        return self.project.stages

    @property
    def written(self) -> tuple[str, ...]:
        """Everything that some stage makes."""
        return tuple(path for stage in self.stages for path in stage.writes)

    def present(self) -> Iterator[Stage]:
        """The stages whose module is there."""
        return (stage for stage in self.stages if stage.module in self.sources.files)

    def code_of(self, stage: Stage) -> set[str]:
        """All modules that run in the stage, those that its params name among them."""
        found = self.sources.imported_by(stage.module)
        for name in _modules_named(self.values.get(stage.name)):
            found |= self.sources.imported_by(name)
        return found

    def named_files(self, stage: Stage) -> set[Path]:
        """Files, in no package, that the stage's params name as `module:callable`."""
        names = _modules_named(self.values.get(stage.name))
        files = (Path(*name.split(".")).with_suffix(".py") for name in names)
        known = set(self.sources.files.values())
        return {path for path in files if path.is_file() and path not in known}

    def resolved(self, path: str) -> Path | None:
        """The path with its `${...}` filled in; None where params.yaml has no value for one."""
        text = project.resolved(path, self.values)
        return None if "${" in text else Path(text)


def read() -> Tree:
    """Read the repository in the current folder.

    Raises:
        HeadraceError: dvc.yaml, params.yaml or a Python file that cannot be read at all.
    """
    described = project.read(Path(DVC_YAML))
    values = read_yaml(Path(PARAMS_YAML))
    named = {name.partition(".")[0] for body in values.values() for name in _modules_named(body)}
    roots = {stage.module.partition(".")[0] for stage in described.stages}
    return Tree(described, values, sources.read({*PACKAGES, *roots, *named}))


def _modules_named(body: Any) -> set[str]:
    """The modules of values such as `my_models.wide:build`."""
    if not isinstance(body, Mapping):
        return set()
    texts = [value for value in body.values() if isinstance(value, str) and value.count(":") == 1]
    pairs = [text.split(":") for text in texts]
    return {
        module
        for module, name in pairs
        if name.isidentifier() and all(part.isidentifier() for part in module.split("."))
    }
