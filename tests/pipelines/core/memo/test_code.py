"""Which code counts: all of the project's own that a function runs, and no other."""

import functools
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import pipelines.clean
import pipelines.decode
import pipelines.shard
from pipelines.commands.check import sources
from pipelines.core.memo import code
from tests import mill

PACKAGE: Mapping[str, str] = {
    "mill/__init__.py": "",
    "mill/grind.py": """\
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import numpy as np
        from . import stones
        if TYPE_CHECKING:
            from mill import unused
        def run():
            from mill.deep import well
            return "mill.named:function", "mill.told"
        """,
    "mill/stones.py": "import json\nSPEED = 3\n",
    "mill/deep/__init__.py": "",
    "mill/deep/well.py": "from ..water import LEVEL\nfrom PIL import Image\n",
    "mill/water.py": "LEVEL = 1\n",
    "mill/told.py": "",
    "mill/unused.py": "",
    "mill/unrelated.py": "",
}
USED = {
    "mill",
    "mill.grind",
    "mill.stones",
    "mill.deep",
    "mill.deep.well",
    "mill.water",
    "mill.told",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def read(folder: Path) -> code.Code:
    with mill.importable(folder):
        __import__("mill.stones")
        __import__("mill")
        sys.modules["mill.grind"] = sys.modules["mill.stones"]  # As imported, without numpy.
        return code.read(["mill.grind"])


def test_imports_are_followed_wherever_they_stand(package: Path) -> None:
    found = read(package)
    assert found.modules == USED
    assert {"numpy", "PIL"} <= found.libraries
    assert not {"json", "mill", "typing"} & found.libraries


@pytest.mark.parametrize("name", ["mill/grind.py", "mill/water.py", "mill/told.py"])
def test_a_change_of_code_that_runs_changes_the_digest(package: Path, name: str) -> None:
    before = read(package).digest
    with (package / name).open("a") as file:
        file.write("CHANGED = True\n")
    assert read(package).digest != before


@pytest.mark.parametrize("name", ["mill/unused.py", "mill/unrelated.py"])
def test_a_change_of_code_that_never_runs_does_not(package: Path, name: str) -> None:
    before = read(package).digest
    (package / name).write_text("CHANGED = True\n")
    assert read(package).digest == before


@pytest.mark.parametrize("stage", ["clean", "shard", "decode"])
def test_it_is_the_code_that_check_wants_among_the_deps(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[4])
    expected = sources.read(["pipelines"]).imported_by(f"pipelines.{stage}")
    assert code.read([f"pipelines.{stage}"]).modules == expected


def test_a_function_names_itself_and_what_is_bound_to_it() -> None:
    function: Any = pipelines.shard.pack
    bound = functools.partial(functools.partial(function, 3), pipelines.decode.decode, limits=None)
    assert code.modules_of(bound) == frozenset({"pipelines.shard", "pipelines.decode"})
    assert code.names_of(bound) == ["pipelines.shard:pack", "pipelines.decode:decode"]


def made() -> Callable[[], int]:
    return lambda: 3


class Callables:
    def __call__(self) -> int:
        return 3


@pytest.mark.parametrize("function", [made(), Callables(), functools.partial(map, made()), len])
def test_of_a_function_in_no_module_the_code_is_not_known(function: Callable[..., Any]) -> None:
    assert code.modules_of(function) is None
