import subprocess
from pathlib import Path

import pytest

from pipelines.commands.why import history
from pipelines.core import project
from pipelines.core.project import Stage
from tests.project import ROOT

DATA = "datasets/fashion/decoded"


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(data: str, weights: str) -> str:
    """Commit a dvc.lock of a training run; its commit."""
    Path("dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  train:\n    deps:\n"
        f"    - path: {DATA}\n      md5: {data}\n"
        f"    outs:\n    - path: runs/train/model.safetensors\n      md5: {weights}\n"
        "    cmd: d\u00e9j\u00e0 vu\n"
    )
    git("add", "dvc.lock")
    git("commit", "-q", "--allow-empty", "-m", weights)
    return git("rev-parse", "HEAD")


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The stage `train`; the current folder is an empty repository."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")
    return project.read(ROOT / "dvc.yaml").stage("train")


def names(train: Stage, md5: str) -> list[str]:
    return [run.name for run in history.runs_on(train, DATA, md5)]


def test_runs_on_the_same_data_are_found_and_no_others(train: Stage) -> None:
    first, _, third = commit("aaaa", "w1"), commit("bbbb", "w2"), commit("aaaa", "w3")
    assert names(train, "aaaa") == [third[:7], first[:7]]
    assert names(train, "cccc") == []


def test_equal_weights_are_one_run(train: Stage) -> None:
    commit("aaaa", "w1")
    commit("bbbb", "w2")
    last = commit("aaaa", "w1")
    assert names(train, "aaaa") == [last[:7]]


def test_experiments_and_other_branches_are_found_by_name(train: Stage) -> None:
    commit("bbbb", "w0")
    git("checkout", "-q", "--detach")
    git("update-ref", "refs/exps/ab/cdef/warm-otter", commit("aaaa", "w1"))
    git("checkout", "-q", "main", "-b", "other")
    branch = commit("aaaa", "w2")
    git("checkout", "-q", "main")
    assert sorted(names(train, "aaaa")) == sorted(["warm-otter", branch[:7]])


def test_a_commit_without_a_lock_or_with_a_broken_one_is_passed_over(train: Stage) -> None:
    first = commit("aaaa", "w1")
    git("rm", "-q", "dvc.lock")
    git("commit", "-q", "-m", "gone")
    Path("dvc.lock").write_text("aaaa: [")
    git("add", "dvc.lock")
    git("commit", "-q", "-m", "broken")
    assert names(train, "aaaa") == [first[:7]]


def test_without_commits_or_repository_there_are_no_runs(
    train: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(train, "aaaa") == []
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    assert names(train, "aaaa") == []
