import shutil
import subprocess
from pathlib import Path

import pytest

from pipelines.commands.diff import committed
from pipelines.core.errors import HeadraceError
from tests.project import change_params, commit, copy_of, run


@pytest.fixture
def copy(edited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to change, as current folder."""
    folder = copy_of(edited, tmp_path / "copy")
    monkeypatch.chdir(folder)
    return folder


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_revision_is_read_from_git_and_the_cache_alone(copy: Path) -> None:
    shutil.rmtree(copy / "datasets")
    before, after = committed.version("HEAD~1"), committed.version("HEAD")
    assert list(before.rejected) == ["clean", "shard", "decode"]
    assert list(after.rejected) == ["clean", "drop_blurred", "shard", "decode"]
    assert sum(file.rows(["key"]).num_rows for file in before.manifest.values()) == 360
    assert before.digest is not None
    assert before.digest != after.digest
    assert not (copy / "datasets").exists()


@pytest.mark.parametrize("name", ["HEAD", "main", "v1", "short", "my-run"])
def test_any_name_of_a_commit_will_do(copy: Path, name: str) -> None:
    git("tag", "v1")
    git("update-ref", "refs/exps/ab/cdef/my-run", "HEAD")
    rev = git("rev-parse", "--short", "HEAD") if name == "short" else name
    assert committed.commit_of(rev) == git("rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("rev", "near"), [("maim", "main"), ("my-rnu", "my-run"), ("--help", None), ("HEAD~99", None)]
)
def test_an_unknown_revision_is_refused_with_the_nearest(
    copy: Path, rev: str, near: str | None
) -> None:
    git("update-ref", "refs/exps/ab/cdef/my-run", "HEAD")
    with pytest.raises(HeadraceError, match=f"git knows no revision '{rev}'") as caught:
        committed.commit_of(rev)
    assert near is None or f"Did you mean {near!r}?" in caught.value.what


def test_outside_of_git_there_are_no_revisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(HeadraceError, match="not a git repository"):
        committed.commit_of("HEAD")


def test_a_commit_without_a_lock_was_not_built(in_edited: Path) -> None:
    with pytest.raises(HeadraceError, match="No data were built at HEAD~2") as caught:
        committed.version("HEAD~2")
    assert caught.value.found == "there is no dvc.lock"


def test_a_dataset_that_was_not_built_is_named(copy: Path) -> None:
    change_params(copy, {"dataset": "other"})
    commit(copy, "other")
    with pytest.raises(HeadraceError, match="No data were built at HEAD") as caught:
        committed.version("HEAD")
    assert "datasets/other/clean" in str(caught.value.found)


def test_without_cache_and_remote_it_says_what_is_missing_and_how_to_get_it(copy: Path) -> None:
    shutil.rmtree(copy / ".dvc" / "cache")
    with pytest.raises(HeadraceError, match="not here") as caught:
        committed.version("HEAD")
    assert "not in the DVC cache, and there is no remote" in str(caught.value.found)
    assert "dvc remote add" in str(caught.value.fix)


def test_a_remote_that_was_named_later_than_the_revision_is_read(copy: Path) -> None:
    run(copy, "dvc", "remote", "add", "--default", "store", str(copy.with_name("store")))
    run(copy, "dvc", "push", "--quiet")
    shutil.rmtree(copy / ".dvc" / "cache")
    found = committed.version("HEAD")
    assert sum(file.rows(["key"]).num_rows for file in found.manifest.values()) > 300
    with pytest.raises(HeadraceError, match="not here") as caught:
        committed.version("HEAD~1")
    assert "neither in the DVC cache nor in the remote" in str(caught.value.found)
    assert "dvc push --all-commits" in str(caught.value.fix)
