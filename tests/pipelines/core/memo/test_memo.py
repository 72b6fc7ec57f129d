"""A stage makes again what changed, and nothing else; its result is the same without a memo."""

import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core import memo, stage
from pipelines.core.errors import HeadraceError
from pipelines.core.memo import Task, store
from pipelines.core.params import params


@params
class Params:
    scale: int


@dataclass(frozen=True)
class Settings:
    scale: int


Write = Callable[[str, Path], None]
made: list[str] = []


def write_text(item: str, piece: Path) -> None:
    made.append(item)
    (piece / "text").write_text(item)


def write_other(item: str, piece: Path) -> None:
    write_text(item, piece)


def write_on_a_full_disk(item: str, piece: Path) -> None:
    write_text(item, piece)
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    Path("params.yaml").write_text("pack: {scale: 1}\n")


def built(items: Sequence[str] = "abc", write: Write = write_text, *, scale: int = 1) -> list[str]:
    """Run a stage that writes each item as a piece; the items that were made anew."""

    def run(job: stage.Job[Params]) -> dict[str, Any]:
        tasks = [Task(f"piece-{number}", item, item) for number, item in enumerate(items)]
        folders = memo.build(job, write, tasks, settings=Settings(scale), describe="items")
        text = "".join((folder / "text").read_text() for folder in folders)
        (job.out / "whole").write_text(text)
        return {}

    made.clear()
    stage.execute(SimpleNamespace(Params=Params, run=run), "pack", ["--out", "out"])
    assert Path("out/whole").read_text() == "".join(items)
    return sorted(made)


def test_what_is_as_before_is_not_made_again() -> None:
    assert built() == ["a", "b", "c"]
    assert built() == []


def test_a_changed_content_is_made_anew_and_no_other() -> None:
    built()
    assert built("aXc") == ["X"]
    assert built() == []


def test_content_settings_function_code_and_versions_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built("a")
    assert built("a", scale=2) == ["a"]
    assert built("a", write_other) == ["a"]
    with monkeypatch.context() as patch:
        patch.setattr(memo, "versions", lambda _: {"pillow": "99"})
        assert built("a") == ["a"]
    with monkeypatch.context() as patch:
        other = memo.code.Code("other", frozenset(), frozenset())
        patch.setattr(memo.code, "read", lambda _: other)
        assert built("a") == ["a"]
    assert built("a") == []


def test_runs_elsewhere_share_the_memo_of_the_main_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "params.yaml").write_text("pack: {scale: 1}\n")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert built() == []
    assert not (elsewhere / ".memo").exists()


def test_a_memo_of_no_size_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MEMO_MAX_GIB", "0")
    assert built() == built() == ["a", "b", "c"]
    assert not Path(".memo").exists()


def test_a_function_of_no_module_works_and_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(item: str, piece: Path) -> None:
        write_text(item, piece)

    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    with caplog.at_level(logging.INFO, "headrace"):
        assert built("ab", write) == built("ab", write) == ["a", "b"]
    assert "items: not kept" in caplog.text


def test_a_memo_that_takes_nothing_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Path(".memo").write_text("no folder")
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    assert built() == ["a", "b", "c"]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "does not keep what was made" in warnings[0].getMessage()


def test_a_harmed_entry_is_made_again() -> None:
    built()
    entry = next(Path(".memo").iterdir())
    (entry / "text").write_text("b" if (entry / "text").read_text() != "b" else "a")
    assert len(built()) == 1
    assert built() == []


def test_what_was_made_before_a_stage_failed_is_kept() -> None:
    built("ab")
    with pytest.raises(HeadraceError, match="no space left"):
        built("c", write_on_a_full_disk)
    assert len(list(store.entries(Path(".memo")))) == 2


def test_a_digest_tells_where_its_parts_end() -> None:
    assert memo.digest("ab", "c") != memo.digest("a", "bc")
    assert memo.digest("ab") == memo.digest(b"ab")
