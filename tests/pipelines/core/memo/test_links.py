"""What DVC does to a file that shares its data with the memo: it never writes into it."""

from pathlib import Path

import pytest

from pipelines.core.memo.store import LINK_BYTES, Store
from tests.project import run

DATA = bytes(LINK_BYTES)


@pytest.mark.parametrize("cache_type", ["reflink,copy", "hardlink", "symlink"])
def test_no_way_of_dvc_with_an_out_changes_the_memo(tmp_path: Path, cache_type: str) -> None:
    project, made = tmp_path / "project", tmp_path / "made"
    made.mkdir()
    (made / "large.tar").write_bytes(DATA)
    memo = Store(tmp_path / ".memo", 1 << 30, 1)
    memo.put("a", made)
    kept = memo.folder / "a" / "large.tar"
    out = project / "out"
    out.mkdir(parents=True)
    run(project, "git", "init", "-q")
    run(project, "dvc", "init", "-q")
    run(project, "dvc", "config", "cache.type", cache_type)

    memo.fetch("a", out)
    assert (out / "large.tar").samefile(kept)
    run(project, "dvc", "add", "-q", "out")
    if cache_type == "reflink,copy":  # The out is a copy by now, to be changed freely.
        assert not (out / "large.tar").samefile(kept)
    run(project, "dvc", "unprotect", "out")
    with (out / "large.tar").open("r+b") as file:
        file.write(b"changed")
    assert kept.read_bytes() == DATA
    run(project, "dvc", "checkout", "--force", "-q")
    assert (out / "large.tar").read_bytes() == kept.read_bytes() == DATA
    run(project, "dvc", "remove", "--outs", "out.dvc")
    assert kept.read_bytes() == DATA
