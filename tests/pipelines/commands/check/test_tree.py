from pathlib import Path

import pytest

from pipelines.commands.check import tree
from pipelines.core.errors import HeadraceError
from tests import mill


def test_packages_are_those_of_stages_and_of_models_that_params_name() -> None:
    for package in ("mine", "other"):
        Path(package).mkdir()
        Path(package, "__init__.py").touch()
    assert not {"mine", "other"} & set(tree.read().sources.files)
    mill.edit("params.yaml", "mesh: fine", "mesh: mine:build")
    files = tree.read().sources.files
    assert "mine" in files
    assert "other" not in files


@pytest.mark.parametrize("value", ["http://a:b", "a b:c", "12:30", "a.b", "C:", "a-b:c"])
def test_a_text_with_a_colon_is_not_always_a_model(value: str) -> None:
    mill.edit("params.yaml", "mesh: fine", f"mesh: '{value}'")
    read = tree.read()
    (sift,) = (stage for stage in read.stages if stage.name == "sift")
    assert read.code_of(sift) == {"mill", "mill.sift"}
    assert read.named_files(sift) == set()


def test_a_path_is_filled_in_or_unknown() -> None:
    read = tree.read()
    assert read.resolved("grain/${lot}/flour") == Path("grain/rye/flour")
    assert read.resolved("grain/${field}/flour") is None


def test_a_stage_without_its_module_is_not_present() -> None:
    Path("mill/sift.py").unlink()
    assert [stage.name for stage in tree.read().present()] == ["grind"]


@pytest.mark.parametrize("name", ["dvc.yaml", "params.yaml"])
def test_a_file_that_is_not_there_is_told_in_words(name: str) -> None:
    Path(name).unlink()
    with pytest.raises(HeadraceError, match=f"There is no {name}"):
        tree.read()
