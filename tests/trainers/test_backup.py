import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
import torch

from tests.servers import point_at_s3, serve_s3
from tests.trainers.runs import contents, train_here
from trainers import snapshot
from trainers.backup import Backup
from trainers.checkpoint import Checkpoints
from trainers.reader.substitute import Substitution
from trainers.step import Outcome, Trainer
from trainers.substituted import Ledger


@pytest.fixture
def url() -> Iterator[str]:
    """A folder in fsspec's own memory."""
    name = f"memory://{uuid4().hex}/checkpoints"
    yield name
    fsspec.filesystem("memory").store.clear()


def save(folder: Path, url: str, *steps: int, keep_last: int = 2) -> None:
    with Checkpoints(folder, keep_last, backup=Backup(url, folder)) as saves:
        for step in steps:
            saves.save(step, {"weight": torch.full((9,), float(step))}, {"value": step})
            saves.wait()


def copies(url: str) -> list[str]:
    filesystem, root = fsspec.core.url_to_fs(url)
    return sorted(path.rsplit("/", 2)[-2] for path in filesystem.glob(f"{root}/*/*/manifest.json"))


def newest(folder: Path, url: str) -> Any:
    with Checkpoints(folder, 2, backup=Backup(url, folder)) as saves:
        saves.bring_back()
        loaded = saves.newest()
        return loaded and (loaded.step, loaded.meta["value"], loaded.tensors["weight"][0].item())


def test_copies_come_and_go_with_the_checkpoints(tmp_path: Path, url: str) -> None:
    save(tmp_path / "run", url, 10, 20, 30)
    assert copies(url) == ["step-00000020", "step-00000030"]
    save(tmp_path / "run", url, 25)  # after a rollback
    assert copies(url) == ["step-00000020", "step-00000025"]


def test_a_run_on_another_machine_goes_on_from_the_newest_copy(tmp_path: Path, url: str) -> None:
    save(tmp_path / "run", url, 10, 20)
    shutil.rmtree(tmp_path / "run")
    assert newest(tmp_path / "run", url) == (20, 20, 20.0)


def test_a_newer_local_checkpoint_wins_over_the_copies(tmp_path: Path, url: str) -> None:
    save(tmp_path / "run", url, 10)
    with Checkpoints(tmp_path / "run", 2) as saves:
        saves.save(15, {"weight": torch.full((9,), 15.0)}, {"value": 15})
    assert newest(tmp_path / "run", url) == (15, 15, 15.0)


def test_another_run_has_copies_of_its_own(tmp_path: Path, url: str) -> None:
    save(tmp_path / "run", url, 10)
    assert newest(tmp_path / "other", url) is None


def test_what_was_replaced_before_the_disk_was_lost_is_known_elsewhere(
    tmp_path: Path, url: str
) -> None:
    folder = tmp_path / "run"
    one, other = (Substitution(id_, f"key{id_}", 9, "key9", "a file") for id_ in (3, 4))
    Ledger(folder).note(one)
    save(folder, url, 10)
    shutil.rmtree(folder)
    assert newest(folder, url) == (10, 10, 10.0)
    Ledger(folder).note(other)
    assert Ledger(folder).entries() == [one, other]
    Backup(url, folder).remove()
    filesystem, root = fsspec.core.url_to_fs(url)
    assert filesystem.glob(f"{root}/run/*.jsonl") == []


def test_a_ledger_that_is_here_is_not_replaced_by_its_older_copy(tmp_path: Path, url: str) -> None:
    folder = tmp_path / "run"
    ledger = Ledger(folder)
    one, other = (Substitution(id_, f"key{id_}", 9, "key9", "a file") for id_ in (3, 4))
    ledger.note(one)
    save(folder, url, 10)
    ledger.note(other)
    newest(folder, url)
    assert ledger.entries() == [one, other]


def test_a_damaged_copy_is_told_and_the_one_before_wins(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "run", url, 10, 20)
    shutil.rmtree(tmp_path / "run")
    with fsspec.open(f"{url}/run/step-00000020/{snapshot.STATE}", "wb") as file:
        file.write(b"other bytes")
    assert newest(tmp_path / "run", url) == (10, 10, 10.0)
    assert "COPY NOT USED: step-00000020" in caplog.text


def test_a_copy_that_was_cut_off_before_its_manifest_does_not_count(
    tmp_path: Path, url: str
) -> None:
    save(tmp_path / "run", url, 10, 20)
    shutil.rmtree(tmp_path / "run")
    filesystem, root = fsspec.core.url_to_fs(url)
    filesystem.rm_file(f"{root}/run/step-00000020/{snapshot.MANIFEST}")
    assert newest(tmp_path / "run", url) == (10, 10, 10.0)


@pytest.mark.parametrize("url", ["nonsense://x/y", "file:///proc/none"])
def test_a_store_that_fails_is_told_and_training_goes_on(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        save(tmp_path / "run", url, 10)
        assert newest(tmp_path / "run", url) == (10, 10, 10.0)
    assert f"NO BACKUP at {url}" in caplog.text
    assert "checkpoint of step 10 has no copy" in caplog.text


def test_a_run_that_lost_its_disk_ends_as_if_undisturbed(
    project: Path,
    undisturbed: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Trainer.step

    def stopped(self: Trainer, at: Any, *args: Any, **named: Any) -> Outcome:
        if at.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, at, *args, **named)

    with serve_s3() as address:
        point_at_s3(address, monkeypatch)
        fsspec.filesystem("s3").mkdir("backup")
        monkeypatch.setenv("HEADRACE_BACKUP_URL", "s3://backup/runs")
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", stopped)
            with pytest.raises(SystemExit):
                train_here(project, "stopped")
        assert len(copies("s3://backup/runs")) == 2
        shutil.rmtree(project / ".state")
        made: list[int] = []

        def noted(self: Trainer, at: Any, *args: Any, **named: Any) -> Outcome:
            made.append(at.step)
            return step(self, at, *args, **named)

        monkeypatch.setattr(Trainer, "step", noted)
        assert contents(train_here(project)) == undisturbed
        assert made == [6, 7]
        assert copies("s3://backup/runs") == []
