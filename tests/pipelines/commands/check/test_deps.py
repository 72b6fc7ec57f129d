from pathlib import Path

import pytest

from pipelines.commands.check import deps, tree
from tests import mill


def found() -> list[str]:
    """Stage, kind and the path that it is about."""
    return sorted(
        f"{finding.where.split('.')[2]} {finding.kind} "
        + (finding.found if finding.kind == "needless-dep" else finding.expected.split(",")[0])
        for finding in deps.findings(tree.read())
    )


def test_where_all_is_declared_nothing_is_found() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("      - mill/stones.py\n", "", ["grind undeclared-import mill/stones.py"]),
        ("      - mill/sift.py\n", "", ["sift undeclared-import mill/sift.py"]),
        ("      - mill/sift.py", "      - mill", []),
        (
            "      - mill/sift.py",
            "      - mill/sift.py\n      - mill/stones.py",
            ["sift needless-dep mill/stones.py"],
        ),
        (
            "      - mill/sift.py",
            "      - mill/sift.py\n      - tests",
            ["sift needless-dep tests"],
        ),
        (
            "      - grain/${lot}/card.yaml",
            "      - grain/${lot}/cards.yaml",
            ["grind missing-dep grain/rye/cards.yaml"],
        ),
        (
            "      - mill/sift.py\n      - requirements.lock",
            "      - mill/sift.py",
            ["sift unpinned-stage requirements.lock"],
        ),
    ],
)
def test_what_is_out_of_step_is_named(old: str, new: str, expected: list[str]) -> None:
    mill.edit("dvc.yaml", old, new)
    assert found() == expected


def test_a_dep_below_an_output_of_a_stage_need_not_be_there_yet() -> None:
    mill.edit(
        "dvc.yaml",
        "      - grain/${lot}/flour\n    params",
        "      - grain/${lot}/flour/fine\n    params",
    )
    assert found() == []


@pytest.mark.parametrize(
    "line",
    [
        "    import mill.husks",
        "    from mill import husks",
        '    import importlib\n    importlib.import_module("mill.husks")',
        '    command = ["torchrun", "-m", "mill.husks"]',
        '    builder = "mill.husks:build"',
    ],
)
def test_an_import_hidden_in_a_function_counts(line: str) -> None:
    Path("mill/husks.py").write_text("import mill.dust\n")
    Path("mill/dust.py").write_text("GRAMS = 1\n")
    mill.edit("mill/sift.py", "def run(job):\n", f"def run(job):\n{line}\n")
    assert found() == [
        "sift undeclared-import mill/dust.py",
        "sift undeclared-import mill/husks.py",
    ]


def test_an_import_for_the_type_checker_does_not_count() -> None:
    mill.edit(
        "mill/sift.py",
        "from pipelines.core import stage",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import mill.stones\n"
        "from pipelines.core import stage",
    )
    assert found() == []


def test_a_package_runs_with_its_modules_and_counts_once_it_has_code() -> None:
    Path("mill/__init__.py").write_text("import mill.stones\n")
    assert found() == [
        "grind undeclared-import mill/__init__.py",
        "sift undeclared-import mill/__init__.py",
        "sift undeclared-import mill/stones.py",
    ]


def test_the_way_to_an_import_is_told() -> None:
    mill.edit("mill/stones.py", "SPEED = 3", "import mill.dust\n\nSPEED = 3")
    Path("mill/dust.py").write_text("GRAMS = 1\n")
    (finding,) = deps.findings(tree.read())
    assert finding.found.endswith("is not listed: mill.grind > mill.stones > mill.dust")


@pytest.mark.parametrize("file", ["mine/wide.py", "wide.py"])
def test_code_that_params_name_must_be_a_dep(file: str) -> None:
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text("def build(): ...\n")
    module = file.removesuffix(".py").replace("/", ".")
    mill.edit("params.yaml", "mesh: fine", f"mesh: {module}:build")
    assert found() == [f"sift undeclared-import {file}"]
    mill.edit("dvc.yaml", "      - mill/sift.py", f"      - mill/sift.py\n      - {file}")
    assert found() == []


def test_code_of_a_package_that_params_name_is_followed() -> None:
    Path("mine").mkdir()
    Path("mine/__init__.py").touch()
    Path("mine/wide.py").write_text("from mine import deep\n\n\ndef build(): ...\n")
    Path("mine/deep.py").write_text("LAYERS = 9\n")
    mill.edit("params.yaml", "mesh: fine", "mesh: mine.wide:build")
    assert found() == ["sift undeclared-import mine/deep.py", "sift undeclared-import mine/wide.py"]
