import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipelines.commands.check import files, tree
from pipelines.core.audit import opened_file
from pipelines.core.errors import HeadraceError
from tests import mill


def found() -> list[str]:
    return sorted(
        f"{f.where} {f.kind} {f.expected} / {f.found}" for f in files.findings(tree.read())
    )


def short() -> list[str]:
    return [" ".join(line.split(" ")[:2]) for line in found()]


def opened(stage: str, *paths: str) -> None:
    """Leave the list of a run that opened these files."""
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    note(stage, paths)


def note(stage: str, paths: Sequence[str]) -> None:
    """Leave the list of a run with the arguments that dvc.yaml has."""
    (block,) = (each for each in tree.read().stages if each.name == stage)
    arguments = block.cmd.replace("${lot}", "rye").split()[3:]
    opened_file(stage).parent.mkdir(parents=True, exist_ok=True)
    opened_file(stage).write_text(json.dumps({"arguments": arguments, "opened": paths}))


def test_where_all_is_declared_and_ignored_nothing_is_found() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "dvc.yaml",
            "      - grain/${lot}/card.yaml\n",
            "",
            "dvc.yaml:stages.grind.cmd undeclared-path",
        ),
        ("dvc.yaml", "flour/fine", "flours", "dvc.yaml:stages.sift.cmd undeclared-path"),
        (
            "dvc.yaml",
            "--report grain/${lot}/grind",
            "--report grain/${lot}/r",
            "dvc.yaml:stages.grind.cmd undeclared-path",
        ),
        (
            "dvc.yaml",
            "    outs:\n      - grain/${lot}/flour\n",
            "    outs:\n      - grain/${lot}/flour:\n          cache: false\n",
            ".gitignore ignored-file",
        ),
        (".gitignore", "/grain/*/sifted\n", "", ".gitignore unignored-file"),
        (".gitignore", "/grain/*/sifted", "/grain/*/sifted/", ".gitignore unignored-file"),
        (".gitignore", "/cluster.yaml\n", "", ".gitignore unignored-file"),
        (".gitignore", "/.state/\n", "", ".gitignore unignored-file"),
        (".gitignore", "/.state/\n", "/.state/\n*.json\n", ".gitignore ignored-file"),
        (".gitignore", "/.state/\n", "/.state/\ndvc.lock\n", ".gitignore ignored-file"),
        (".dvcignore", "__pycache__/\n", "", ".dvcignore unignored-file"),
        (".dvcignore", ".lock-*\n", "", ".dvcignore unignored-file"),
    ],
)
def test_what_is_out_of_step_is_named(file: str, old: str, new: str, expected: str) -> None:
    mill.edit(file, old, new)
    assert expected in short()


def test_an_uncached_out_that_git_would_take_in_is_named() -> None:
    mill.edit(
        "dvc.yaml", "      - grain/${lot}/sifted", "      - grain/${lot}/sifted: {cache: false}"
    )
    mill.edit(".gitignore", "/grain/*/sifted\n", "")
    assert short() == ["dvc.yaml:stages.sift.outs uncached-out"]


def test_an_out_may_be_declared_in_parts() -> None:
    mill.edit(
        "dvc.yaml",
        "    outs:\n      - grain/${lot}/sifted",
        "    outs:\n      - grain/${lot}/sifted/a\n      - grain/${lot}/sifted/b",
    )
    assert found() == []


def test_a_file_that_was_opened_and_not_declared_is_named() -> None:
    opened("sift", "grain/rye/flour/fine/1", "grain/rye/card.yaml", "mill/sift.py")
    (finding,) = files.findings(tree.read())
    assert (finding.where, finding.kind) == ("dvc.yaml:stages.sift.deps", "undeclared-file")
    assert finding.found == "grain/rye/card.yaml, opened by its last run and not listed"


def test_what_it_writes_its_params_its_machine_and_its_code_may_be_opened() -> None:
    opened(
        "grind",
        *("params.yaml", "dvc.yaml", "cluster.yaml", "requirements.lock", "mill/__init__.py"),
        *("grain/rye/flour/1", "grain/rye/grind.json", "grain/wheat/card.yaml"),
        *("mill/__pycache__/stones.cpython-311.pyc.1234", "mill/stones.py"),
    )
    Path("grain/rye/gone.txt").unlink(missing_ok=True)
    listed = json.loads(opened_file("grind").read_text())["opened"]
    note("grind", [*listed, "grain/rye/gone.txt", "grain/rye"])
    assert found() == []


CARD = """\
title: Rye
licence: MIT
origin: a field
task: classification
labels: [good, bad]
sources:
  - url: rye.zip
    sha256: {sha256}
samples: {{layout: folders}}
"""


def test_a_source_that_the_card_pins_may_be_opened() -> None:
    opened("grind", "grain/rye/rye.zip")
    Path("grain/rye/card.yaml").write_text(CARD.format(sha256="a" * 64))
    assert found() == []
    Path("grain/rye/card.yaml").write_text(CARD.format(sha256="null"))
    assert short() == ["dvc.yaml:stages.grind.deps undeclared-file"]


def test_an_input_may_be_declared_in_parts() -> None:
    mill.edit("dvc.yaml", "--flour grain/${lot}/flour/fine", "--flour grain/${lot}")
    assert found() == []


def test_a_list_older_than_the_code_is_not_used() -> None:
    opened("sift", "grain/rye/card.yaml")
    os.utime(opened_file("sift"), (1, 1))
    assert found() == []


def test_the_list_of_a_run_with_other_arguments_is_not_used() -> None:
    opened("sift", "grain/rye/card.yaml")
    mill.edit("dvc.yaml", "--out grain/${lot}/sifted", "--out grain/${lot}/sieved")
    mill.edit("dvc.yaml", "- grain/${lot}/sifted", "- grain/${lot}/sieved")
    mill.edit(".gitignore", "/grain/*/sifted\n", "/grain/*/sieved\n")
    assert found() == []


def test_without_git_it_says_what_to_do() -> None:
    shutil.rmtree(".git")
    with pytest.raises(HeadraceError, match=r"git cannot say(.|\n)*git init"):
        found()


def test_without_ignore_rules_every_rule_is_missing() -> None:
    Path(".dvcignore").unlink()
    assert short() == [".dvcignore unignored-file"] * 5


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (os.mkfifo, "a pipe, socket or device"),
        (lambda path: path.symlink_to("nothing"), "a link to nothing: No such file or directory"),
        (lambda path: path.symlink_to(path.name), "a link to nothing: Too many levels of symbolic"),
        (lambda path: path.symlink_to(".."), "a link to a folder elsewhere"),
    ],
)
def test_what_dvc_cannot_hash_is_named(make: Callable[[Path], None], told: str) -> None:
    mill.edit("dvc.yaml", "      - grain/${lot}/card.yaml", "      - grain/${lot}")
    make(Path("grain/rye/odd"))
    (line,) = found()
    assert line.startswith("grain/rye/odd unhashable-file")
    assert told in line


def test_file_whose_name_is_not_utf_8_is_named() -> None:
    mill.edit("dvc.yaml", "      - grain/${lot}/card.yaml", "      - grain/${lot}")
    Path(os.fsdecode(b"grain/rye/\xff.jpg")).touch()
    (line,) = found()
    assert line.startswith("grain/rye/\\udcff.jpg unhashable-file")


def test_link_to_a_folder_inside_is_no_obstacle() -> None:
    mill.edit("dvc.yaml", "      - grain/${lot}/card.yaml", "      - grain/${lot}")
    Path("grain/rye/all").symlink_to(".")
    assert found() == []
