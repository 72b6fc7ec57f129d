"""The summary that `make repro` ends with."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.commands import summary
from pipelines.core.errors import HeadraceError


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which every stage has run."""
    dataset = tmp_path / "datasets" / "mill"
    rejected = {"clean": 900, "shard": 0, "decode": 100}
    reports = {
        f"datasets/mill/reports/{stage}.json": {"samples_kept": 4000, "samples_rejected": count}
        for stage, count in rejected.items()
    }
    for name, content in (reports | {"runs/evaluate/metrics.json": {"accuracy": 0.87654}}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    (dataset / "decoded").mkdir()
    (dataset / "decoded" / "index.arrow").write_bytes(b"index")
    (tmp_path / "runs" / "train").mkdir()
    (tmp_path / "runs" / "train" / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "params.yaml").write_text("dataset: mill\n")
    blocks = [
        f"  {stage}:\n    cmd: python -m pipelines.{stage} --out o"
        f" --report datasets/${{dataset}}/reports/{stage}.json\n"
        for stage in ("ingest", "clean", "shard", "decode", "weigh")
    ]
    (tmp_path / "dvc.yaml").write_text("stages:\n" + "".join(blocks))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_finished_run_is_told_in_full(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert summary.main([]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    told = {name: text.strip() for name, text in lines.items()}
    assert told["samples"] == "4,000 kept, 1,000 rejected  (clean 900, shard 0, decode 100)"
    assert told["dataset version"].startswith(hashlib.sha256(b"index").hexdigest())
    assert told["test accuracy"].startswith("0.8765")
    assert told["weights"].startswith(hashlib.sha256(b"weights").hexdigest())
    assert "runs/evaluate/plots" in told["plots"]
    assert told["reports"].startswith("datasets/mill/report.html, datasets/mill/reports, ")


@pytest.mark.parametrize(
    "name",
    [
        "datasets/mill/reports/clean.json",
        "datasets/mill/decoded/index.arrow",
        "runs/train/model.safetensors",
        "runs/evaluate/metrics.json",
    ],
)
def test_a_run_that_did_not_end_is_named_by_the_missing_file(finished: Path, name: str) -> None:
    (finished / name).unlink()
    with pytest.raises(HeadraceError) as caught:
        summary.main([])
    assert caught.value.where == name
    assert "dvc repro" in str(caught.value.fix)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"accuracy": "high"}', '{"accuracy": null}'])
def test_metrics_that_are_not_numbers_are_refused(finished: Path, text: str) -> None:
    (finished / "runs/evaluate/metrics.json").write_text(text)
    with pytest.raises(HeadraceError) as caught:
        summary.main([])
    assert caught.value.where == "runs/evaluate/metrics.json"


def test_nothing_heavy_is_imported_for_it() -> None:
    code = "import sys, pipelines.commands.summary; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"torch", "pyarrow", "pandas", "dask", "numpy"}.isdisjoint(modules)
