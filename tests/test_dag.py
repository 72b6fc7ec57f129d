"""dvc.yaml, params.yaml, modules and tests agree, and the deps of every stage are complete.

`check` is asked, and so are Python, git and DVC, which know nothing of it.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.project import run

ROOT = Path(__file__).parents[1]
DVC_YAML: dict[str, Any] = YAML(typ="safe").load(ROOT / "dvc.yaml")
PARAMS: dict[str, Any] = YAML(typ="safe").load(ROOT / "params.yaml")
STAGES: dict[str, Any] = DVC_YAML["stages"]
CHECK = (sys.executable, "-B", "-m", "pipelines", "check")


def module_of(stage: str) -> str:
    """The module that the stage's command runs."""
    python, flag, module, *_ = STAGES[stage]["cmd"].split()
    assert (python, flag) == ("python", "-m")
    return str(module)


def deps_of(stage: str) -> list[str]:
    return [dep.replace("${dataset}", PARAMS["dataset"]) for dep in STAGES[stage]["deps"]]


def test_everything_is_in_step() -> None:
    assert run(ROOT, *CHECK, check=False).stdout.startswith("Everything is in step")


def test_no_stage_opens_a_file_that_it_does_not_declare(built: Path) -> None:
    said = run(built, *CHECK, check=False).stdout
    assert said.startswith("Everything is in step")
    assert f" {len(STAGES)} stages have run as they are" in said


def test_the_line_has_its_stages_in_their_order() -> None:
    expected = ["ingest", "clean", "shard", "decode", "explain", "train", "evaluate"]
    assert [name for name in STAGES if name in expected] == expected


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_has_one_name_in_four_places(stage: str) -> None:
    package, name = module_of(stage).split(".")
    assert name == stage
    assert (ROOT / package / f"{stage}.py").is_file()
    assert (ROOT / "tests" / package / f"test_{stage}.py").is_file()
    assert stage in PARAMS
    assert stage in STAGES[stage]["params"]


def test_every_key_of_params_yaml_belongs_to_a_stage() -> None:
    tracked = {entry for stage in STAGES.values() for entry in stage["params"]}
    interpolated = {"dataset"}
    assert set(PARAMS) == tracked | interpolated
    assert all("${dataset}" in stage["cmd"] for stage in STAGES.values())


def test_dvc_lock_is_of_this_code_and_these_params() -> None:
    status = json.loads(run(ROOT, "dvc", "status", "--json").stdout.splitlines()[-1])
    changes: dict[str, dict[str, str]] = {}
    for stage, entries in status.items():
        for entry in entries:
            # Data that a fresh clone has not built yet is deleted, or not in its cache.
            changes[stage] = changes.get(stage, {}) | {
                path: change
                for path, change in entry.get("changed deps", {}).items()
                if change != "deleted"
            }
            assert entry != "changed command", f"{stage}: `make repro`, then commit dvc.lock"
    stale = {stage: found for stage, found in changes.items() if found}
    assert not stale, "`make repro`, then commit dvc.lock and datasets/*/reports"


@pytest.mark.parametrize("stage", STAGES)
def test_what_python_imports_for_a_stage_is_among_its_deps(stage: str) -> None:
    script = (
        f"import json, sys, {module_of(stage)}\n"
        "files = [getattr(m, '__file__', None) for m in list(sys.modules.values())]\n"
        "print(json.dumps([file for file in files if file]))"
    )
    python = [sys.executable, "-B", "-W", "ignore", "-c", script]
    done = subprocess.run(python, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(file) for file in json.loads(done.stdout)]
    own = [
        file.relative_to(ROOT)
        for file in files
        if file.is_relative_to(ROOT) and not file.is_relative_to(sys.prefix)
    ]
    deps = [Path(dep) for dep in deps_of(stage)]
    undeclared = [file for file in own if not any(file.is_relative_to(dep) for dep in deps)]
    assert Path(*module_of(stage).split(".")).with_suffix(".py") in own
    assert [file for file in undeclared if has_code(ROOT / file)] == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_library_that_changes_runs_every_stage_again(stage: str) -> None:
    assert "requirements.lock" in deps_of(stage)


def test_there_is_no_python_among_the_data() -> None:
    listed = run(ROOT, "git", "ls-files", "-co", "--exclude-standard", "datasets").stdout
    assert [name for name in listed.splitlines() if name.endswith((".py", ".pyi", ".so"))] == []
    assert not list((ROOT / "datasets").glob("*.py"))


def has_code(file: Path) -> bool:
    """Whether a module is more than a docstring."""
    return len(ast.parse(file.read_text()).body) > 1


def defines(file: Path) -> bool:
    """Whether a module has functions or classes: something to test."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.parse(file.read_text()).body)


def mirrors(file: Path) -> list[Path]:
    """Where the tests of a module may be."""
    folder = Path("tests", file.parent)
    if file.name == "__init__.py":
        name = f"test_{file.parent.name}.py"
        return [folder / name, folder.parent / name]
    return [folder / f"test_{file.stem.strip('_')}.py"]


def test_every_module_has_its_mirror_test() -> None:
    files = [
        path.relative_to(ROOT)
        for package in ("pipelines", "trainers")
        for path in sorted((ROOT / package).rglob("*.py"))
    ]
    missing = [
        str(file)
        for file in files
        if defines(ROOT / file) and not any((ROOT / path).is_file() for path in mirrors(file))
    ]
    assert missing == []
