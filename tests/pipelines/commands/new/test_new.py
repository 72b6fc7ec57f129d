import json
import sys
from pathlib import Path

import pytest

from pipelines.commands import new
from tests import project

ROOT = Path(__file__).parents[4]
PYTHON = (sys.executable, "-m")
STAGES = {"sieve": "clean", "weigh": "shard", "brighten": "decode"}


def test_all_files_are_written(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("old")
    new.write_all({tmp_path / "a": "new", tmp_path / "b": "newer"})
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("new", "newer")


def test_where_one_file_cannot_be_written_none_is(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("old")
    (tmp_path / "c").mkdir()
    with pytest.raises(IsADirectoryError):
        new.write_all({tmp_path / "a": "new", tmp_path / "b": "newer", tmp_path / "c": "no file"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]
    assert (tmp_path / "b").read_text() == "old"


def test_what_was_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dvc.yaml", "params.yaml", ".gitignore"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.chdir(tmp_path)
    assert new.main(["sieve", "--after", "clean"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "pipelines/sieve.py             new",
        "tests/pipelines/test_sieve.py  new",
        "dvc.yaml                       stage sieve after clean; shard now reads its manifest",
        "params.yaml                    section sieve",
        ".gitignore                     a line for its output",
        "next: pytest tests/pipelines/test_sieve.py && python -m pipelines check && dvc repro",
    ]
    assert Path("pipelines/sieve.py").is_file()


def add_all(folder: Path) -> list[str]:
    """Add a stage of each kind; its modules and tests."""
    for verb, after in STAGES.items():
        project.run(folder, *PYTHON, "pipelines", "new", verb, "--after", after)
    modules = [f"pipelines/{verb}.py" for verb in STAGES]
    return modules + [f"tests/pipelines/test_{verb}.py" for verb in STAGES]


def report(folder: Path, stage: str) -> dict[str, int]:
    path = folder / "datasets" / "fashion" / "reports" / f"{stage}.json"
    found: dict[str, int] = json.loads(path.read_text())
    return found


def test_new_stages_pass_run_and_leave_everything_in_step(built: Path, tmp_path: Path) -> None:
    folder = project.copy_of(built, tmp_path / "copy")
    files = add_all(folder)
    project.run(folder, *PYTHON, "ruff", "check", *files)
    project.run(folder, *PYTHON, "ruff", "format", "--check", *files)
    project.run(folder, *PYTHON, "pytest", "-q", "-p", "no:cacheprovider", *files[len(STAGES) :])

    # Without what stands between them: the shards are there.
    project.run(folder, "dvc", "repro", "--single-item", *STAGES)
    sieved, packed = report(folder, "sieve"), report(folder, "shard")
    assert sieved["samples_in"] == packed["samples_in"] == sum(project.SAMPLES.values())
    for verb in ("weigh", "brighten"):
        measured = report(folder, verb)
        assert measured["num_rows_read"] == packed["samples_kept"]
        assert measured["num_rows_written"] == packed["samples_kept"]
        made = folder / "datasets" / "fashion" / verb
        assert len(list(made.glob("*.parquet"))) == packed["num_shards"]

    checked = project.run(folder, *PYTHON, "pipelines", "check", check=False).stdout
    assert checked.startswith("Everything is in step (10 stages")
    assert "9 stages have run as they are" in checked  # Not shard: it now reads another manifest.
    assert not project.run(folder, "git", "status", "--porcelain", "datasets/fashion/sieve").stdout


@pytest.mark.slow
def test_the_line_runs_through_a_new_stage_and_all_is_typed(built: Path, tmp_path: Path) -> None:
    folder = project.copy_of(built, tmp_path / "copy")
    files = add_all(folder)
    project.run(folder, *PYTHON, "mypy", *files)
    project.run(folder, "lint-imports", "--no-cache")

    project.change_params(folder, {"sieve": {"min_sharpness": 3000, "max_rejected_fraction": 1}})
    project.run(folder, "dvc", "repro")
    sieved = report(folder, "sieve")
    assert 0 < sieved["samples_kept"] < sieved["samples_in"]
    assert report(folder, "shard")["samples_in"] == sieved["samples_kept"]
    assert report(folder, "decode")["samples_kept"] == sieved["samples_kept"]
