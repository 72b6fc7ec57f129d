import shutil
from pathlib import Path

import pytest

from pipelines.commands.diff import workspace
from pipelines.core.errors import HeadraceError
from pipelines.core.storage import sha256_file
from tests.project import change_params, copy_of


@pytest.fixture
def copy(edited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to change, as current folder."""
    folder = copy_of(edited, tmp_path / "copy")
    monkeypatch.chdir(folder)
    return folder


def test_the_files_of_the_last_manifest_and_all_rejected_tables_are_found(in_edited: Path) -> None:
    found = workspace.version()
    assert found.name == "workspace"
    assert found.dataset == "fashion"
    assert sorted(found.manifest) == [0, 1, 2, 3]
    assert list(found.rejected) == ["clean", "drop_blurred", "shard", "decode"]
    assert found.late == {"shard", "decode"}
    assert found.digest == sha256_file(in_edited / "datasets/fashion/decoded/index.arrow")


def test_what_is_up_to_date_has_no_note(in_edited: Path) -> None:
    assert workspace.version().notes == ()


def test_a_stage_that_is_out_of_date_is_noted_with_what_changed(copy: Path) -> None:
    change_params(copy, {"clean": {"min_contrast": 7}})
    (note,) = workspace.version().notes
    assert note.startswith("clean is out of date in the workspace (params.yaml clean")


@pytest.mark.parametrize("missing", ["clean", "drop_blurred", "shards", "decoded"])
def test_what_is_not_built_is_named(copy: Path, missing: str) -> None:
    shutil.rmtree(copy / "datasets/fashion" / missing)
    with pytest.raises(HeadraceError, match="not all there") as caught:
        workspace.version()
    assert str(caught.value.where).startswith(f"datasets/fashion/{missing}/")
    assert "dvc repro" in str(caught.value.fix)
