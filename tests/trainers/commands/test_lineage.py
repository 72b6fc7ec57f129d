import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import ROOT
from trainers.commands import lineage
from trainers.lineage import blob_id, digest_of_code
from trainers.record import LINEAGE, WEIGHTS


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert lineage.main(argv) == 0
    return capsys.readouterr().out


def test_the_weights_file_alone_leads_back_wherever_it_was_copied(
    finished: Path, tmp_path: Path
) -> None:
    record = json.loads((finished / LINEAGE).read_text())
    elsewhere = tmp_path / "far" / "away.safetensors"
    elsewhere.parent.mkdir()
    shutil.move(finished / WEIGHTS, elsewhere)
    shutil.rmtree(finished)
    done = subprocess.run(
        [sys.executable, "-m", "trainers", "lineage", elsewhere.name],
        cwd=elsewhere.parent,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    facts = {
        "weights": record["weights"]["sha256"],
        "model": "small: images 12x12x1, 4 classes",
        "dataset version": record["dataset_version"],
        "params": "batch_size 16",
        "seeds": "seed 1",
        "environment": "cpu: capability ",
        "chain": f"{record['chain']['digest']}  (over 8 steps)",
    }
    for name, value in facts.items():
        line = next(line for line in done.stdout.splitlines() if line.startswith(f"{name} "))
        assert line[len("dataset version") :].strip().startswith(value)
    assert "not at hand" in done.stdout


def test_data_at_hand_are_told_and_lead_to_the_samples(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(capsys, str(finished), "--data", "decoded")
    assert "in decoded: trained on 64 samples (--samples lists them)" in text
    keys = told(capsys, str(finished), "--data", "decoded", "--samples").splitlines()
    assert len(keys) == len(set(keys)) == 64
    assert keys == sorted(keys)
    assert {key.split("/")[0] for key in keys} == {"train"}


def test_data_of_other_versions_are_told(
    project: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "other").mkdir()
    (project / "other" / "index.arrow").write_bytes(b"other")
    text = told(capsys, str(finished), "--data", "other")
    assert "not at hand" in text
    assert "other is version 1" not in text
    assert "other is version " in text


def rows(blobs: dict[str, str]) -> list[str]:
    return [text for _, text in lineage._code(blobs)]


def test_the_commit_that_holds_the_code_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "commit_of", lambda _: "c0ffee")
    assert rows({"trainers/train.py": "ab"}) == ["c0ffee  (holds the 1 files of code that ran)"]


def test_code_that_no_commit_holds_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "commit_of", lambda _: None)
    path = "trainers/train.py"
    here = {path: blob_id(ROOT / path)}
    assert rows(here)[1:] == [
        f"their blob ids have SHA-256 {digest_of_code(here)}",
        "all are as they lie here: commit them, and this line names the commit",
    ]
    assert rows({path: "ab", "gone.py": "cd"})[2:] == [
        "other than here: trainers/train.py, gone.py",
        "to look for one: git log --all --find-object=ab -- trainers/train.py",
    ]
