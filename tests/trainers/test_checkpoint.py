import errno
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trainers import snapshot
from trainers.checkpoint import Checkpoints, Loaded, fingerprint, finished_folder, state_folder


def state(value: int) -> dict[str, Tensor]:
    return {
        "weight": torch.full((40, 30), float(value)),
        "half": torch.arange(7).to(torch.bfloat16) + value,
        "step": torch.tensor(value),
        "rng": torch.arange(16, dtype=torch.uint8),
    }


def assert_holds(loaded: Loaded | None, value: int) -> None:
    assert loaded is not None
    assert loaded.meta == {"value": value}
    assert loaded.tensors.keys() == state(value).keys()
    for name, tensor in state(value).items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor)


def fill(folder: Path, *steps: int, keep_last: int = 3) -> None:
    with Checkpoints(folder, keep_last) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), {"value": step})


def newest(folder: Path) -> Loaded | None:
    with Checkpoints(folder, 1) as checkpoints:
        return checkpoints.newest()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    fill(tmp_path / "run", 7)
    loaded = newest(tmp_path / "run")
    assert_holds(loaded, 7)
    assert loaded is not None
    assert loaded.step == 7


def test_a_run_without_checkpoints_has_no_newest_one(tmp_path: Path) -> None:
    assert newest(tmp_path / "run") is None
    assert not (tmp_path / "run").exists()


def test_the_last_ones_stay_and_the_newest_wins(tmp_path: Path) -> None:
    fill(tmp_path / "run", 5, 90, 1000, 123456789, keep_last=2)
    assert names(tmp_path / "run") == ["step-00001000", "step-123456789"]
    assert_holds(newest(tmp_path / "run"), 123456789)


def test_keeping_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_last"):
        Checkpoints(tmp_path, 0)


def test_a_save_does_not_see_what_training_writes_after_it(tmp_path: Path) -> None:
    tensors = state(1)
    with Checkpoints(tmp_path / "run", 1) as checkpoints:
        checkpoints.save(1, tensors, {"value": 1})
        for tensor in tensors.values():
            tensor.zero_()
        assert_holds(checkpoints.newest(), 1)


def test_shared_and_strided_tensors_are_saved_as_they_look(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(2, 3, 2, 2)
    tensors = {"tied": base, "again": base, "last": base.to(memory_format=torch.channels_last)}
    with Checkpoints(tmp_path / "run", 1) as checkpoints:
        checkpoints.save(1, tensors | {"view": base.permute(3, 2, 1, 0)}, {})
        loaded = checkpoints.newest()
    assert loaded is not None
    assert all(torch.equal(loaded.tensors[name], base) for name in tensors)
    assert torch.equal(loaded.tensors["view"], base.permute(3, 2, 1, 0))


def test_saving_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, write = threading.Event(), snapshot.write
    monkeypatch.setattr(snapshot, "write", lambda *arguments: disk.wait(20) and write(*arguments))
    with Checkpoints(tmp_path / "run", 1) as checkpoints:
        started = time.monotonic()
        checkpoints.save(1, state(1), {"value": 1})
        assert time.monotonic() - started < 10
        assert not (tmp_path / "run").exists()
        disk.set()
        assert_holds(checkpoints.newest(), 1)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_damage_is_found_and_the_one_before_wins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path / "run", 10, 20)
    cut(tmp_path / "run" / "step-00000020" / snapshot.STATE)
    with caplog.at_level(logging.ERROR):
        assert_holds(newest(tmp_path / "run"), 10)
    assert "step-00000020" in caplog.text
    assert "NOT USED" in caplog.text


def test_all_damaged_says_that_the_run_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path / "run", 10)
    cut(tmp_path / "run" / "step-00000010" / snapshot.STATE)
    with caplog.at_level(logging.ERROR):
        assert newest(tmp_path / "run") is None
    assert "begins from its first step" in caplog.text


def test_state_of_another_run_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path / "theirs", 10)
    (tmp_path / "theirs").rename(tmp_path / "ours")
    with caplog.at_level(logging.ERROR):
        assert newest(tmp_path / "ours") is None
    assert "another run" in caplog.text


def test_a_saved_step_replaces_itself_and_undoes_the_future(tmp_path: Path) -> None:
    fill(tmp_path / "run", 10, 20, 30, keep_last=3)
    with Checkpoints(tmp_path / "run", 3) as checkpoints:
        checkpoints.save(20, state(99), {"value": 99})
        assert_holds(checkpoints.newest(), 99)
    assert names(tmp_path / "run") == ["step-00000010", "step-00000020"]


def test_a_damaged_newest_does_not_push_out_the_good_one(tmp_path: Path) -> None:
    fill(tmp_path / "run", 10, 20, keep_last=2)
    cut(tmp_path / "run" / "step-00000020" / snapshot.STATE)
    fill(tmp_path / "run", 15, keep_last=1)
    assert_holds(newest(tmp_path / "run"), 15)
    assert names(tmp_path / "run") == ["step-00000015"]


def test_leftovers_are_ignored_then_removed(tmp_path: Path) -> None:
    fill(tmp_path / "run", 10)
    (tmp_path / "run" / "step-00000020.tmp").mkdir()
    (tmp_path / "run" / "step-00000020.tmp" / snapshot.STATE).write_bytes(b"half")
    assert_holds(newest(tmp_path / "run"), 10)
    fill(tmp_path / "run", 30)
    assert names(tmp_path / "run") == ["step-00000010", "step-00000030"]


def test_an_error_of_the_thread_surfaces_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    fill(tmp_path / "run", 10)
    checkpoints = Checkpoints(tmp_path / "run", 2)
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "fsync_path", fail)
        checkpoints.save(20, state(20), {"value": 20})
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            checkpoints.save(30, state(30), {"value": 30})
    assert_holds(checkpoints.newest(), 10)
    checkpoints.save(40, state(40), {"value": 40})
    checkpoints.close()
    assert_holds(newest(tmp_path / "run"), 40)


def test_no_space_at_the_flush_keeps_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    fill(tmp_path / "run", 10)
    with Checkpoints(tmp_path / "run", 1) as checkpoints:
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr(snapshot, "fsync_path", fail)
            checkpoints.save(20, state(20), {"value": 20})
            checkpoints.wait()
        assert "NO SPACE FOR A CHECKPOINT of step 20" in caplog.text
        assert names(tmp_path / "run") == ["step-00000010"]
        checkpoints.save(30, state(30), {"value": 30})
    assert_holds(newest(tmp_path / "run"), 30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"needs a small file system: {made.stderr.strip() or 'mount refused'}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_the_previous_one_and_training_goes_on(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(small_disk / "run", 10)
    with Checkpoints(small_disk / "run", 1) as checkpoints, caplog.at_level(logging.ERROR):
        checkpoints.save(20, {"large": torch.zeros(1 << 16)}, {})
        assert_holds(checkpoints.newest(), 10)
        assert "NO SPACE" in caplog.text
        checkpoints.save(30, state(30), {"value": 30})
    assert_holds(newest(small_disk / "run"), 30)
    assert names(small_disk / "run") == ["step-00000030"]


PARAMS = {"lr": 0.1, "epochs": 3}
CODE = {"trainers/train.py": "aa"}


def test_runs_that_differ_in_data_params_or_code_have_different_fingerprints() -> None:
    prints = {
        fingerprint(dataset_version=version, params=params, code=code)
        for version in ("v1", "v2")
        for params in (PARAMS, PARAMS | {"lr": 0.2})
        for code in (CODE, CODE | {"net.py": "bb"})
    }
    assert len(prints) == 8
    assert all(len(text) == 64 for text in prints)


def test_the_order_of_keys_is_not_part_of_a_fingerprint() -> None:
    backwards = dict(reversed(PARAMS.items()))
    assert fingerprint(dataset_version="v", params=PARAMS, code=CODE) == fingerprint(
        dataset_version="v", params=backwards, code=CODE
    )


def test_another_library_version_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(dataset_version="v", params=PARAMS, code=CODE)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.0.1")
    assert fingerprint(dataset_version="v", params=PARAMS, code=CODE) != before


def test_the_newest_up_to_a_step_is_found(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run", 3) as checkpoints:
        for step in (10, 20, 30):
            checkpoints.save(step, state(step), {"value": step})
        loaded = [checkpoints.newest(last) for last in (9, 10, 29, None)]
    assert [it and it.step for it in loaded] == [None, 10, 20, 30]


def test_another_number_of_threads_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(dataset_version="v", params=PARAMS, code=CODE)
    monkeypatch.setattr("torch.get_num_threads", lambda: 77)
    assert fingerprint(dataset_version="v", params=PARAMS, code=CODE) == before


def test_state_lies_in_the_main_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copy" / ".dvc").mkdir(parents=True)
    (tmp_path / "copy" / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "copy" / "deep")
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert state_folder("f") == tmp_path / "copy" / ".state" / "f"
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "main"))
    assert state_folder("f") == tmp_path / "main" / ".state" / "f"
    monkeypatch.delenv("DVC_ROOT")
    monkeypatch.chdir(tmp_path)
    assert state_folder("f") == tmp_path / ".state" / "f"


def test_multiples_stay_and_are_left_when_the_run_has_ended(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run", 1, keep_every=10) as checkpoints:
        for step in (5, 10, 15, 20, 25):
            checkpoints.save(step, state(step), {"value": step})
        checkpoints.wait()
        assert names(tmp_path / "run") == ["step-00000010", "step-00000020", "step-00000025"]
        checkpoints.finish()
    assert not (tmp_path / "run").exists()
    assert names(finished_folder(tmp_path / "run")) == ["step-00000010", "step-00000020"]
    assert_holds(newest(finished_folder(tmp_path / "run")), 20)


def test_a_run_that_has_ended_leaves_nothing_otherwise(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run", 2) as checkpoints:
        checkpoints.finish()  # without having saved
        checkpoints.save(5, state(5), {"value": 5})
        checkpoints.finish()
    assert list(tmp_path.iterdir()) == []


def test_the_memory_of_a_copy_is_used_again(tmp_path: Path) -> None:
    with Checkpoints(tmp_path / "run", 1) as checkpoints:
        addresses = []
        for step in (1, 2):
            checkpoints.save(step, state(step), {"value": step})
            checkpoints.wait()
            addresses.append({n: t.data_ptr() for n, t in checkpoints._staging.items()})
        assert addresses[0] == addresses[1]
        assert_holds(checkpoints.newest(), 2)
        checkpoints.save(3, {"weight": torch.zeros(3)}, {})
        assert checkpoints._staging["weight"].shape == (3,)


@pytest.mark.slow
def test_a_step_waits_for_a_copy_in_memory_and_not_for_the_disk(tmp_path: Path) -> None:
    tensors = {str(number): torch.rand(1 << 20) for number in range(25)}  # 100 MB
    copies, stalls = [], []
    with Checkpoints(tmp_path / "run", 1) as checkpoints:
        for step in range(6):
            began = time.thread_time()  # of this thread: others run beside the test
            checkpoints.save(step, tensors, {})
            stalls.append(time.thread_time() - began)
            assert checkpoints.is_busy
            checkpoints.wait()
            began = time.thread_time()
            for name, tensor in tensors.items():
                checkpoints._staging[name].copy_(tensor)
            copies.append(time.thread_time() - began)
    assert min(stalls) < 2 * min(copies) + 0.01, (stalls, copies)
