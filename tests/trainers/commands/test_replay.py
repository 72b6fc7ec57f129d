import json
import shutil
from itertools import chain
from pathlib import Path

import pytest

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import NUM_STEPS, set_params, train_here
from trainers.chain import Chain
from trainers.commands import replay
from trainers.reader.slots import Microbatch
from trainers.record import STEPS, WEIGHTS
from trainers.step import Outcome, Position, Trainer


def replayed(capsys: pytest.CaptureFixture[str], path: Path, step: int) -> replay.Replayed:
    argv = [str(path), "--data", "decoded", "--step", str(step), "--json"]
    assert replay.main(argv) == 0
    return replay.Replayed(**json.loads(capsys.readouterr().out))


def test_the_samples_of_any_step_are_those_that_the_run_read(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[int, list[list[int]]] = {}
    step = Trainer.step

    def noting(self: Trainer, at: Position, shares: list[Microbatch], *, stop: bool) -> Outcome:
        seen[at.step] = [share.ids.tolist() for share in shares]
        return step(self, at, shares, stop=stop)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", noting)
        out = train_here(project)
    shutil.move(out / WEIGHTS, project / "alone.safetensors")
    first_ids = {"00000": 0, "00001": 24, "00002": 44}
    for number in range(NUM_STEPS):
        told = replayed(capsys, project / "alone.safetensors", number)
        ids = [
            [first_ids[key.split("/")[1]] + int(key.split("/")[2]) for key in keys]
            for keys in told.workers
        ]
        assert ids == seen[number]
        assert (told.epoch, told.step_of_epoch) == divmod(number, 4)
        assert not told.is_checked


def test_an_epoch_has_every_sample_once(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [
        key
        for step in range(4)
        for key in chain.from_iterable(replayed(capsys, finished, step).workers)
    ]
    assert len(keys) == len(set(keys)) == 64


def test_the_order_is_checked_against_the_run_s_own_record(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replayed(capsys, finished, 3).is_checked
    assert replay.main([str(finished), "--data", "decoded", "--step", "3"]) == 0
    first, *workers = capsys.readouterr().out.splitlines()
    assert first.startswith("step 3: step 3 of epoch 0, dataset version ")
    assert first.endswith(", as steps.parquet says")
    assert [line.split(":")[0] for line in workers] == [f"logical worker {k}" for k in range(4)]


def test_the_record_of_another_run_is_not_asked(
    finished: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_params(project, seed=2)
    shutil.copy(train_here(project) / STEPS, finished / STEPS)
    assert not replayed(capsys, finished, 3).is_checked


def test_a_run_that_read_something_else_is_told(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = Chain.read(finished / STEPS).link(2).ids
    monkeypatch.setattr(replay, "digest_of_ids", lambda _: digest ^ 1)
    with pytest.raises(HeadraceError, match="read other samples") as caught:
        replay.main([str(finished), "--data", "decoded", "--step", "2"])
    assert f"{digest:016x}" in str(caught.value)


@pytest.mark.parametrize("step", [-1, NUM_STEPS])
def test_a_step_that_the_run_does_not_have_is_refused(finished: Path, step: int) -> None:
    with pytest.raises(HeadraceError, match="no such step") as caught:
        replay.main([str(finished), "--data", "decoded", "--step", str(step)])
    assert caught.value.expected == "0 to 7: 2 epochs of 4 steps"
