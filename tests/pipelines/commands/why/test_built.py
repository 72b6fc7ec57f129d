import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.commands.why import built
from pipelines.core.errors import HeadraceError
from tests.edited import BLURRED


@pytest.fixture
def changed(edited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what `why` reads, to be damaged; the current folder."""
    for name in ("dvc.yaml", "dvc.lock", "params.yaml"):
        shutil.copy(edited / name, tmp_path)
    shutil.copytree(edited / "datasets" / "fashion" / "clean", tmp_path / "datasets/fashion/clean")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "datasets/fashion/clean"


def test_a_row_is_read_from_the_one_bucket_that_can_hold_it(in_edited: Path) -> None:
    project = built.read()
    row = project.row_of(project.clean, BLURRED)
    assert row is not None
    assert (row["key"], row["label"]) == (BLURRED, "Ankle boot")
    assert project.row_of(project.route.manifests[-1], BLURRED) is None


def test_what_a_stage_rejected_is_read_from_its_own_table(in_edited: Path) -> None:
    project = built.read()
    clean, blurred = project.route.manifests
    assert {row["stage"] for row in project.rejected(clean)} == {"clean"}
    assert [row["key"] for row in project.rejected(blurred)] == [BLURRED]


def test_a_stage_that_has_not_run_rejected_nothing_yet(changed: Path) -> None:
    project = built.read()
    assert project.rejected(project.route.shard) == []


@pytest.mark.parametrize(
    ("damage", "what", "fix"),
    [
        (shutil.rmtree, "Stage clean has not run here", "dvc repro"),
        (
            lambda folder: (folder / "manifest/00001.parquet").unlink(),
            "not all there",
            "dvc checkout",
        ),
        (lambda folder: cut(folder / "manifest/00000.parquet"), "cannot be read", "dvc checkout"),
    ],
)
def test_what_is_missing_or_damaged_is_named_with_what_mends_it(
    changed: Path, damage: Callable[[Path], None], what: str, fix: str
) -> None:
    damage(changed)
    project = built.read()
    with pytest.raises(HeadraceError, match=what) as caught:
        project.manifests(project.clean)
    assert str(caught.value.where).startswith("datasets/fashion/clean/manifest")
    assert fix in str(caught.value.fix)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_json_that_is_no_object_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(HeadraceError, match="cannot be read"):
        built.read_json(tmp_path / "x.json")


@pytest.mark.parametrize("data", [b"", b"garbage", b"PAR1garbagePAR1"])
def test_tables_that_are_none_are_damaged(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    for read in (built.read_rows, lambda path: built.read_columns(path, ["a"])):
        with pytest.raises(HeadraceError, match="cannot be read") as caught:
            read(path)
        assert caught.value.where == str(path)
