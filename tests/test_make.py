"""The Makefile as a person meets it on a machine where something is not right."""

import os
import re
import subprocess
from pathlib import Path

import pytest


def make(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run make, with the folder `path` in front of PATH."""
    search = os.pathsep.join([str(path)] * (path is not None) + [os.environ["PATH"]])
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        env=os.environ | {"PATH": search},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def command(folder: Path, name: str, script: str) -> Path:
    """Put an executable shell script into `folder`."""
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the files that set-up reads, and no .venv."""
    for name in ("Makefile", "requirements.lock"):
        (tmp_path / name).write_bytes(Path(name).read_bytes())
    return tmp_path


def said(result: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on standard error, without make's own."""
    return [line for line in result.stderr.splitlines() if not line.startswith("make")]


def test_help_is_the_default_and_lists_every_target() -> None:
    listed = re.findall(r"^make (\S+)", make().stdout, re.MULTILINE)
    phony = re.findall(r"^\.PHONY: (.*)$", Path("Makefile").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(" ".join(phony).split()) - {"host"})


@pytest.mark.parametrize("target", ["repro", "test", "lint", "setup"])
def test_other_systems_are_refused_in_one_sentence(clone: Path, target: str) -> None:
    command(clone, "uname", "echo Darwin")
    result = make("-C", str(clone), target, path=clone)
    assert result.returncode != 0
    assert said(result) == ["Headrace runs on Linux only, since DALI does; this is Darwin."]
    assert result.stdout == ""
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("script", ["exit 1", "exit 127"], ids=["old", "not there"])
def test_python_that_is_too_old_is_refused_in_one_sentence(clone: Path, script: str) -> None:
    python = command(clone, "python3.9", script)
    result = make("-C", str(clone), "repro", f"PYTHON={python}")
    assert result.returncode != 0
    (line,) = said(result)
    assert line.startswith(f"Headrace needs Python 3.11 or newer, and '{python}' is not;")
    assert not (clone / ".venv").exists()


def test_version_that_is_refused_is_the_one_of_pyproject() -> None:
    assert 'requires-python = ">=3.11"' in Path("pyproject.toml").read_text()
    assert "sys.version_info < (3, 11)" in Path("Makefile").read_text()


def test_set_up_does_nothing_when_the_lock_is_older_than_the_environment(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".installed").touch()
    python = command(clone, "python", "exit 1")
    result = make("-C", str(clone), "setup", f"PYTHON={python}")
    assert (result.returncode, result.stderr) == (0, "")


def test_set_up_that_fails_is_tried_again(clone: Path) -> None:
    python = command(clone, "python", 'test "$1" = -c')
    for _ in range(2):
        result = make("-C", str(clone), "setup", f"PYTHON={python}")
        assert result.returncode != 0
        assert "Installing requirements.lock" in result.stdout
