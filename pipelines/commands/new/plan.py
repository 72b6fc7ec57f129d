"""Everything that a new stage needs, as texts of files, before any of it is written."""

from __future__ import annotations

import copy
import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from pipelines.commands.new import blocks
from pipelines.commands.new.shapes import Shape, out_of, shape_after, sibling
from pipelines.core import project
from pipelines.core.errors import HeadraceError
from pipelines.core.project import Project, is_covered
from pipelines.core.typed import read_yaml

DVC_YAML, PARAMS_YAML, GITIGNORE = Path("dvc.yaml"), Path("params.yaml"), Path(".gitignore")
_TEMPLATES = Path(__file__).parent / "templates"
_VERB = "[a-z][a-z0-9_]{0,29}"


@dataclass(frozen=True)
class Plan:
    """A new stage.

    Attributes:
        shape: what it reads, and who reads it.
        texts: the whole text of every file that is new or changes, those that are new first.
    """

    shape: Shape
    texts: Mapping[Path, str]


def plan(verb: str, after: str) -> Plan:
    """Plan the stage `verb` after the stage `after` of the project in the current folder.

    Raises:
        HeadraceError: the name cannot be one or is taken, nothing can follow `after`, or a YAML
            file is written in an unusual way.
    """
    _check_verb(verb)
    described = project.read(DVC_YAML)
    shape = shape_after(described, after)
    stage = described.stage(after)
    out = sibling(out_of(stage), verb)
    new_files = {
        Path("pipelines", f"{verb}.py"): "module.py",
        Path("tests", "pipelines", f"test_{verb}.py"): "test.py",
    }
    _check_free(verb, described, (*new_files, Path("pipelines", verb)), out)
    words = {
        "verb": verb,
        "desc": shape.desc,
        "argument": shape.argument,
        "reads": shape.reads,
        "out": out,
        "report": sibling(stage.arguments.get("report", f"{out}.json"), f"{verb}.json"),
        "deps": _list(shape.reads, "pipelines/core", f"pipelines/{verb}.py", "requirements.lock"),
    }
    texts = {path: _filled(shape, name, words) for path, name in new_files.items()}
    texts[GITIGNORE] = _gitignore(out_of(stage), out)
    texts[PARAMS_YAML] = _params_yaml(after, verb, _filled(shape, "params.yaml", words))
    block = Template((_TEMPLATES / "stage.yaml.txt").read_text()).substitute(words)
    texts[DVC_YAML] = _dvc_yaml(after, verb, block, shape, f"{out}/manifest")
    return Plan(shape, texts)


def _check_verb(verb: str) -> None:
    if not re.fullmatch(_VERB, verb) or keyword.iskeyword(verb):
        raise HeadraceError(
            f"{verb!r} cannot name a stage.",
            expected="a verb in small letters that Python can import, such as deduplicate",
        )


def _check_free(verb: str, described: Project, paths: tuple[Path, ...], out: str) -> None:
    taken = {str(path): "it exists" for path in paths if path.exists()}
    if verb in read_yaml(PARAMS_YAML):
        taken[f"{PARAMS_YAML}:{verb}"] = "it exists"
    for stage in described.stages:
        if stage.name == verb:
            taken[f"{DVC_YAML}:stages.{verb}"] = "it exists"
        for path in stage.writes:
            if is_covered(path, [out]) or is_covered(out, [path]):
                taken[out] = f"stage {stage.name} writes {path}"
    if taken:
        raise HeadraceError(
            f"The name {verb} is taken; nothing was written.",
            where=", ".join(taken),
            found="; ".join(dict.fromkeys(taken.values())),
            fix="take another verb",
        )


def _filled(shape: Shape, name: str, words: Mapping[str, str]) -> str:
    text = (_TEMPLATES / shape.template / f"{name}.txt").read_text()
    return _with_imports_sorted(Template(text).substitute(words))


def _with_imports_sorted(text: str) -> str:
    """Where `pipelines.<verb>` stands among the imports depends on the verb."""
    lines = text.splitlines(keepends=True)
    places = [at for at, line in enumerate(lines) if line.startswith("from pipelines.")]
    for at, line in zip(places, sorted(lines[at] for at in places), strict=True):
        lines[at] = line
    return "".join(lines)


def _list(*entries: str) -> str:
    return "\n".join(f"    - {entry}" for entry in sorted(entries))


def _gitignore(beside: str, out: str) -> str:
    """.gitignore with a line for `out`, after the one for the output that it stands beside."""
    lines = GITIGNORE.read_text().splitlines() if GITIGNORE.exists() else []
    line, neighbour = (f"/{re.sub(r'[$]{[^}]*}', '*', path)}" for path in (out, beside))
    if line not in lines:
        lines.insert(lines.index(neighbour) + 1 if neighbour in lines else len(lines), line)
    return "\n".join([*lines, ""])


def _params_yaml(after: str, verb: str, block: str) -> str:
    text, document = PARAMS_YAML.read_text(), read_yaml(PARAMS_YAML)
    # A stage without keys of its own may have no section.
    sibling_key = after if after in document else list(document)[-1]
    changed = blocks.inserted(text, (sibling_key,), block)
    expected = _with_next(document, sibling_key, verb, blocks.loaded(block)[verb])
    blocks.check_says(changed, expected, str(PARAMS_YAML))
    return changed


def _dvc_yaml(after: str, verb: str, block: str, shape: Shape, manifest: str) -> str:
    """dvc.yaml with the new stage, which stands between `after` and whoever read its manifest."""
    text, document = DVC_YAML.read_text(), copy.deepcopy(read_yaml(DVC_YAML))
    for reader in shape.readers:
        text = blocks.replaced(text, ("stages", reader), shape.reads, manifest)
        document["stages"][reader] = _rewired(document["stages"][reader], shape.reads, manifest)
    text = blocks.inserted(text, ("stages", after), block)
    stages = _with_next(document["stages"], after, verb, blocks.loaded(block)[verb])
    blocks.check_says(text, {**document, "stages": stages}, str(DVC_YAML))
    return text


def _rewired(value: Any, old: str, new: str) -> Any:
    """A stage's block with another path wherever `old` is a whole word."""
    match value:
        case str():
            words = re.split(r"(\s+)", value)
            return "".join(new if word == old else word for word in words)
        case list():
            return [_rewired(item, old, new) for item in value]
        case dict():
            return {
                _rewired(key, old, new): _rewired(item, old, new) for key, item in value.items()
            }
        case _:
            return value


def _with_next(mapping: Mapping[str, Any], after: str, key: str, value: Any) -> dict[str, Any]:
    """The mapping with another key behind `after`."""
    made: dict[str, Any] = {}
    for name, item in mapping.items():
        made[name] = item
        if name == after:
            made[key] = value
    return made
