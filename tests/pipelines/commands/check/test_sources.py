from pathlib import Path

import pytest

from pipelines.commands.check import sources
from pipelines.core.errors import HeadraceError


def test_a_package_that_is_not_there_is_empty() -> None:
    assert sources.read(["smithy"]).files == {}


def test_modules_are_named_with_their_files() -> None:
    assert sources.read(["mill"]).files == {
        "mill": Path("mill/__init__.py"),
        "mill.grind": Path("mill/grind.py"),
        "mill.sift": Path("mill/sift.py"),
        "mill.stones": Path("mill/stones.py"),
    }


def test_imports_are_followed_to_the_end_and_packages_run_too() -> None:
    read = sources.read(["mill"])
    assert read.imported_by("mill.grind") == {"mill", "mill.grind", "mill.stones"}
    assert read.imported_by("numpy") == set()


def test_imports_in_a_circle_come_to_an_end() -> None:
    Path("mill/stones.py").write_text("import mill.grind\n")
    assert "mill.grind" in sources.read(["mill"]).imported_by("mill.stones")


def test_only_what_is_read_counts_as_read() -> None:
    Path("mill/stones.py").write_text("import sys\nsys.a = sys.b\ndel sys.c\n")
    assert sources.read(["mill"]).attributes_read(["mill.stones"]) == {"b"}


@pytest.mark.parametrize("text", ["def\n", "x = '\0'\n", "\xff\xfe"])
def test_a_file_that_is_not_python_is_told_with_its_place(text: str) -> None:
    Path("mill/stones.py").write_bytes(text.encode("latin-1"))
    with pytest.raises(HeadraceError, match=r"mill/stones.py is not Python(.|\n)*stones.py:\d"):
        sources.read(["mill"])
