import ast
from pathlib import Path

import pytest

from pipelines.commands import check
from pipelines.commands.check.finding import Kind
from tests import mill


def test_a_project_in_step_passes_with_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([]) == 0
    assert capsys.readouterr().out == (
        "Everything is in step (2 stages, 4 modules;"
        " 0 stages have run as they are, so that the files they open are known).\n"
    )


def test_all_findings_come_at_once_sorted_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    mill.edit("dvc.yaml", "      - mill/stones.py\n", "")
    mill.edit("params.yaml", "200", "0")
    mill.edit(".gitignore", "/cluster.yaml\n", "")
    Path("tests/mill/test_sift.py").unlink()
    assert check.main([]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split(": expected")[0] for line in lines] == [
        ".gitignore: unignored-file",
        "dvc.yaml:stages.grind.deps: undeclared-import",
        "dvc.yaml:stages.sift: missing-test",
        "params.yaml:grind.size_um: wrong-param",
    ]
    assert last.startswith("4 findings (2 stages, 4 modules;")


def test_help_explains_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        check.main(["--help"])
    said = capsys.readouterr().out
    assert all(f"{kind} " in said and kind.meaning in said for kind in Kind)


def test_every_kind_is_provoked_by_a_test_of_this_folder() -> None:
    folder = Path(__file__).parent
    texts = [
        node.value
        for path in folder.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [kind for kind in Kind if not any(kind in text for text in texts)] == []
