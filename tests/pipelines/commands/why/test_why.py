import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.commands import why
from pipelines.core.errors import HeadraceError
from tests.edited import BLANKED, BLURRED


def test_a_person_reads_the_verdict_first_and_then_the_stages(
    in_edited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why.main(["train/00001"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["train/00001: kept", ""]
    assert [line.split()[0] for line in lines[2:] if not line.startswith(" ")][:2] == [
        "ingest",
        "clean",
    ]


@pytest.mark.parametrize(("key", "stage"), [(BLANKED, "clean"), (BLURRED, "drop_blurred")])
def test_the_verdict_names_the_stage_that_rejected(
    in_edited: Path, capsys: pytest.CaptureFixture[str], key: str, stage: str
) -> None:
    assert why.main([key]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"{key}: rejected by {stage}"


def test_machines_get_one_object(in_edited: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert why.main([BLURRED, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["key"], told["status"]) == (BLURRED, "rejected by drop_blurred")
    assert told["steps"][-1]["params"] == {"min_sharpness": 10}


def test_outside_a_project_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HeadraceError, match=r"There is no dvc\.yaml"):
        why.main(["x"])


def test_neither_dvc_nor_torch_is_imported_for_it() -> None:
    code = "import sys, pipelines.commands.why; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"torch", "dvc", "dask", "pandas"}.isdisjoint(modules)
