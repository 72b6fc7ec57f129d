import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from pipelines.core import process
from tests.trainers import runs
from trainers import launch
from trainers.launch import EX_TEMPFAIL, StopRequest


def test_signals_are_noted_and_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGINT):
        with StopRequest() as stop:
            assert not stop.is_set
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
            assert stop.is_set
    assert signal.getsignal(signal.SIGTERM) is before


def failure(exitcode: int) -> ProcessFailure:
    return ProcessFailure(local_rank=1, pid=1, exitcode=exitcode, error_file="none")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, 0),
        (SignalException("stopped", signal.SIGTERM), EX_TEMPFAIL),
        (ChildFailedError("x", {0: failure(EX_TEMPFAIL), 1: failure(-15)}), EX_TEMPFAIL),
        (ChildFailedError("x", {0: failure(1)}), 1),
        (ChildFailedError("x", {0: failure(-9)}), 1),
    ],
)
def test_the_ends_of_the_ranks_become_one_exit_code(
    error: Exception | None,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[Any] = []

    def run(options: Any) -> None:
        asked.append(options)
        if error:
            raise error

    monkeypatch.setattr("torch.distributed.run.run", run)
    assert launch._run_ranks("trainers.train", 3, ["--out", "x"]) == expected
    assert asked[0].nproc_per_node == "3"
    assert asked[0].training_script == "trainers.train"
    assert asked[0].training_script_args == ["--out", "x"]
    assert caplog.messages == (
        ["rank 1 was ended by SIGKILL"] if expected == 1 and "-9" in str(error) else []
    )


def test_bad_params_are_told_before_a_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.set_params(tmp_path, lr="fast", epochs=0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "--out", "x"])
    monkeypatch.setattr(launch, "_run_ranks", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(process, "configure_logging", lambda: None)
    monkeypatch.setattr(process, "die_with_parent", lambda: None)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit, match=r"(?s)2 faults.*lr: .*train\.epochs: "):
        launch.main("trainers.train")


def test_a_fault_on_the_ranks_is_told_once_without_a_traceback(tmp_path: Path) -> None:
    runs.make_run(tmp_path, batch_size=18)
    process = runs.start(tmp_path, num_ranks=2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert output.count("ERROR in trainers.train") == 1
    assert "cannot be cut into equal microbatches" in output
    assert "Traceback" not in output
    assert not (tmp_path / "runs" / "there").exists()


def test_signals_stay_noted_where_another_rank_has_gone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = StopRequest()
    try:
        with pytest.raises(RuntimeError), stop:
            raise RuntimeError("[gloo/pair.cc:547] Connection closed by peer")
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop._before[number])
    assert signal.getsignal(signal.SIGTERM) is before
