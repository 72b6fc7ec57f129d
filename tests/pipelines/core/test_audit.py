import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.core import audit

SCRIPT = """
import sys
from pathlib import Path
from pipelines.core.audit import Opened
opened = Opened(Path.cwd())
import first_party
Path("data/in.txt").read_text()
Path(sys.argv[1]).read_text()
Path("data/.tmp-out").mkdir()
Path("data/.tmp-out/x").write_text("x")
Path(".git").mkdir()
Path(".git/config").write_text("x")
print("\\n".join(opened.paths()))
"""


def test_files_opened_below_the_root_are_noted_and_private_ones_are_not(tmp_path: Path) -> None:
    project, outside = tmp_path / "project", tmp_path / "outside.txt"
    (project / "data").mkdir(parents=True)
    (project / "data" / "in.txt").touch()
    (project / "first_party.py").touch()
    outside.touch()
    for _ in range(2):  # the second time the module is read from its compiled form
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, outside],
            cwd=project,
            env={"PYTHONPATH": f"{Path.cwd()}:{project}"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == ["data/in.txt", "first_party.py"]
        (project / "data" / ".tmp-out" / "x").unlink()
        (project / "data" / ".tmp-out").rmdir()
        (project / ".git" / "config").unlink()
        (project / ".git").rmdir()


def test_the_list_is_left_where_check_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert audit.opened_file("clean") == tmp_path / ".state" / "opened" / "clean.json"
