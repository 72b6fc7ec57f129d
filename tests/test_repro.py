"""The promise, tested on a small cut of the bundled sample through real `dvc` commands."""

import json
from pathlib import Path

import pytest
import s3fs
from safetensors import safe_open

from pipelines.core import project
from tests.project import change_params, commit, copy_of, digests, run, stages_run
from tests.servers import point_at_s3, serve_s3

DATA = tuple(f"datasets/fashion/{name}" for name in ("raw", "clean", "shards", "decoded"))
OUTPUTS = (*DATA, "datasets/fashion/reports", "runs")
UP_TO_DATE = "Data and pipelines are up to date."


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    """A built project to change freely."""
    return copy_of(built, tmp_path / "copy")


def trained_params(copy: Path) -> dict[str, object]:
    with safe_open(copy / "runs/train/model.safetensors", "pt") as file:
        params: dict[str, object] = json.loads(file.metadata()["headrace"])["params"]
        return params


def test_a_second_repro_runs_nothing(built: Path) -> None:
    assert UP_TO_DATE in run(built, "dvc", "repro").stdout


def test_git_sees_the_reports_and_the_lock_and_no_data(built: Path) -> None:
    stages = project.read(built / "dvc.yaml").stages
    reports = [stage.arguments["report"] for stage in stages if "report" in stage.arguments]
    status = run(built, "git", "status", "--porcelain", "-uall").stdout.split()
    assert status[1::2] == [
        *sorted(report.replace("${dataset}", "fashion") for report in reports),
        "dvc.lock",
    ]


def test_another_clone_with_more_workers_and_ranks_gives_the_same_bytes(
    built: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "elsewhere" / "clone"
    run(tmp_path, "git", "clone", "-q", str(built), str(clone))
    wide = {"HEADRACE_CLUSTER": "processes", "HEADRACE_NUM_WORKERS": "2", "HEADRACE_NUM_RANKS": "2"}
    run(clone, "dvc", "repro", environment=wide)
    assert digests(clone, *OUTPUTS) == digests(built, *OUTPUTS)
    assert (clone / "dvc.lock").read_bytes() == (built / "dvc.lock").read_bytes()


def test_an_experiment_with_another_rate_trains_and_judges_and_nothing_else(copy: Path) -> None:
    commit(copy, "built")
    before = digests(copy, *DATA)
    done = run(copy, "dvc", "exp", "run", "-n", "slower", "-S", "lr=1e-5")
    assert stages_run(done.stdout) == ["train", "evaluate"]
    assert trained_params(copy)["lr"] == 0.00001
    assert digests(copy, *DATA) == before

    shown = json.loads(run(copy, "dvc", "exp", "show", "--json").stdout)
    names = {exp["name"] for row in shown for exp in row["experiments"] or ()}
    assert names == {"slower"}
    differences = json.loads(run(copy, "dvc", "metrics", "diff", "--json").stdout)
    assert "accuracy" in differences["runs/evaluate/metrics.json"]
    run(copy, "dvc", "plots", "show", "-o", "plots")
    page = (copy / "plots" / "index.html").read_text()
    for part in ("Confusion matrix", "Recall of", "Precision of", "mistakes", "train/loss"):
        assert part in page


@pytest.mark.parametrize(
    ("override", "part"),
    [
        ("lrr=1", "lrr"),
        ("lr=fast", "lr: expected a valid number, found 'fast' (text)"),
        ("train.epochs=0", "train.epochs: expected greater than or equal to 1"),
    ],
)
def test_a_wrong_override_fails_before_any_work_and_says_why(
    copy: Path, override: str, part: str
) -> None:
    commit(copy, "built")
    before = digests(copy, *DATA)
    done = run(copy, "dvc", "exp", "run", "-S", override, check=False)
    assert done.returncode != 0
    assert part in done.stdout
    assert "Traceback" not in done.stdout
    assert digests(copy, *DATA) == before
    assert not (copy / ".state" / "train").exists()


def test_an_unknown_key_of_params_is_an_error_of_every_stage(copy: Path) -> None:
    with (copy / "params.yaml").open("a") as file:
        file.write("lrr: 1\n")
    change_params(copy, {"evaluate": {"num_mistakes": 3}})
    done = run(copy, "dvc", "repro", check=False)
    assert stages_run(done.stdout) == ["evaluate"]
    assert "lrr: unknown key, no stage of dvc.yaml tracks it. Did you mean 'lr'?" in done.stdout


def test_a_clean_clone_pulls_from_a_folder_and_runs_nothing(copy: Path, tmp_path: Path) -> None:
    run(copy, "dvc", "remote", "add", "-d", "store", str(tmp_path / "store"))
    commit(copy, "built")
    run(copy, "dvc", "push")
    clone = tmp_path / "clone"
    run(tmp_path, "git", "clone", "-q", str(copy), str(clone))
    run(clone, "dvc", "pull")
    assert UP_TO_DATE in run(clone, "dvc", "repro").stdout
    assert digests(clone, *OUTPUTS) == digests(copy, *OUTPUTS)


def test_a_clean_clone_pulls_from_s3_and_runs_nothing(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve_s3() as url:
        point_at_s3(url, monkeypatch)
        s3fs.S3FileSystem().mkdir("bucket")
        run(copy, "dvc", "remote", "add", "-d", "store", "s3://bucket/store")
        run(copy, "dvc", "remote", "modify", "store", "endpointurl", url)
        commit(copy, "built")
        run(copy, "dvc", "push")
        clone = tmp_path / "clone"
        run(tmp_path, "git", "clone", "-q", str(copy), str(clone))
        run(clone, "dvc", "pull")
        assert UP_TO_DATE in run(clone, "dvc", "repro").stdout
        assert digests(clone, *OUTPUTS) == digests(copy, *OUTPUTS)
