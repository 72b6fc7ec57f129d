import json
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
import torch.distributed as dist

from tests.trainers import runs
from tests.trainers.runs import set_params
from trainers import watchdog
from trainers.watchdog import Watchdog, at


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_BEAT_S", 0.02)
    monkeypatch.setattr(watchdog, "_GRACE_S", 0.1)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Exit codes; instead of the process, the thread that asks for its end waits for its own."""
    made: list[int] = []

    def end(self: Watchdog, why: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("os._exit", made.append)
            die(self, why)
        self._ended.wait()

    die = Watchdog._die
    monkeypatch.setattr(Watchdog, "_die", end)
    return made


def wait_for(exits: list[int], num: int = 1) -> None:
    end = time.monotonic() + 20
    while len(exits) < num and time.monotonic() < end:
        time.sleep(0.01)


def test_alone_there_is_nothing_to_watch() -> None:
    with Watchdog(dist.HashStore(), 0, 1) as alone:
        assert not alone._thread.is_alive()


def test_ranks_that_live_and_end_are_left_in_peace(
    exits: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    store = dist.HashStore()
    with Watchdog(store, 0, 2):
        with Watchdog(store, 1, 2):
            time.sleep(0.7)  # more than is silence
        time.sleep(0.7)
    assert exits == []
    assert capsys.readouterr().err == ""


def test_a_silent_rank_is_named_with_its_last_place(
    exits: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    store = dist.HashStore()
    beat = {"number": 4, "place": "step 40, waiting for data", "who": ["elsewhere", 1, 0.0]}
    dist.PrefixStore("watchdog", store).set("1", json.dumps(beat))
    at("step 41, the all_reduce of gradients")
    with Watchdog(store, 0, 2):
        wait_for(exits)
    assert exits == [1]
    said = capsys.readouterr().err
    assert "Rank 1 no longer answers" in said
    assert "where:    step 41, the all_reduce of gradients (rank 0)" in said
    assert "the last was at step 40, waiting for data" in said


def test_all_ranks_end_and_say_where_they_waited(
    exits: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    store = dist.HashStore()
    with Watchdog(store, 0, 3), Watchdog(store, 2, 3):
        at("step 7, the all_reduce of losses and buffers")
        wait_for(exits, 2)
    said = capsys.readouterr().err
    assert said.count("Rank 1 no longer answers") == 1
    for rank in (0, 2):
        expected = f"rank {rank} ends at step 7, the all_reduce of losses and buffers: rank 1"
        assert expected in said


def test_the_failure_of_one_ends_those_that_wait_for_it(
    exits: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    store = dist.HashStore()
    with Watchdog(store, 0, 2):
        with pytest.raises(KeyError), Watchdog(store, 1, 2):
            raise KeyError("mine")
        wait_for(exits)
    assert exits == [1]
    assert "rank 1 has failed" in capsys.readouterr().err


def test_a_stopped_process_of_this_machine_is_killed_and_no_other() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    created = psutil.Process(sleeper.pid).create_time()
    host = socket.gethostname()
    watchdog._kill("elsewhere", sleeper.pid, created)
    watchdog._kill(host, sleeper.pid, created - 1)
    assert sleeper.poll() is None
    sleeper.send_signal(signal.SIGSTOP)
    watchdog._kill(host, sleeper.pid, created)
    assert sleeper.wait(10) == -signal.SIGKILL
    watchdog._kill(host, sleeper.pid, created)  # it is gone: nothing happens


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), True),
        (dist.DistBackendError("NCCL error"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (KeyError("gloo"), False),
    ],
)
def test_what_another_rank_did_is_told_from_own_faults(error: Exception, *, expected: bool) -> None:
    assert watchdog.is_about_another_rank(error) is expected


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_hung_or_dead_rank_is_named_within_30_seconds(
    project: Path, number: signal.Signals
) -> None:
    set_params(project, epochs=100_000)
    process = runs.start(project, num_ranks=3)
    while not list((project / ".state").glob("*/step-*[0-9]")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    time.sleep(3)
    ranks = {
        child.environ()["RANK"]: child
        for child in psutil.Process(process.pid).children(recursive=True)
        if "RANK" in child.environ()
    }
    assert len(ranks) == 3
    ranks["1"].send_signal(number)
    began = time.monotonic()
    output, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert process.returncode == 1, output
    assert "Rank 1 no longer answers" in output
    assert "all_reduce" in output
    assert "the last was at step " in output
    assert output.count("ends at step ") == 2
    assert "Traceback" not in output
    assert list((project / ".state").glob("*/step-*[0-9]"))
