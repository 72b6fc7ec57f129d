from pathlib import Path

import pytest

from pipelines.commands.check import layout, tree
from tests import mill


def found() -> list[str]:
    return sorted(f"{finding.where} {finding.kind}" for finding in layout.findings(tree.read()))


def test_where_all_names_meet_nothing_is_found() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "dvc.yaml",
            "  sift:\n    cmd",
            "  sieve:\n    cmd",
            ["dvc.yaml:stages.sieve misnamed-stage"],
        ),
        (
            "dvc.yaml",
            "-m mill.sift",
            "-m mill.sieve",
            [
                "dvc.yaml:stages.sift misnamed-stage",
                "dvc.yaml:stages.sift missing-test",
                "dvc.yaml:stages.sift.cmd missing-module",
                "mill/sift.py orphan-module",
            ],
        ),
        ("mill/sift.py", '"mill.sift"', '"mill.grind"', ["mill/sift.py broken-module"]),
        ("mill/sift.py", "__main__", "main", ["mill/sift.py broken-module"]),
    ],
)
def test_what_is_out_of_step_is_named(file: str, old: str, new: str, expected: list[str]) -> None:
    mill.edit(file, old, new)
    assert found() == expected


def test_a_stage_without_its_test_is_named() -> None:
    Path("tests/mill/test_sift.py").unlink()
    assert found() == ["dvc.yaml:stages.sift missing-test"]


def test_a_stage_without_its_module_is_named() -> None:
    Path("mill/sift.py").unlink()
    assert found() == ["dvc.yaml:stages.sift.cmd missing-module"]


def test_a_module_with_params_that_no_stage_runs_is_named() -> None:
    Path("mill/bake.py").write_text(Path("mill/sift.py").read_text().replace("sift", "bake"))
    assert found() == ["mill/bake.py orphan-module"]


def test_a_folder_of_modules_without_init_is_named() -> None:
    Path("mill/wheels").mkdir()
    Path("mill/wheels/oak.py").write_text("SPOKES = 8\n")
    assert found() == ["mill/wheels missing-init"]


def test_python_among_the_data_is_named_unless_it_is_data() -> None:
    mill.edit("dvc.yaml", "      - grain/${lot}/sifted", "      - datasets/${lot}/raw")
    for path in ("datasets/__init__.py", "datasets/rye/raw/sample.py"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    assert found() == ["datasets/__init__.py python-in-datasets"]
