import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from pipelines.core.errors import HeadraceError
from tests.project import ROOT
from tests.trainers.runs import arithmetic_kept, rewritten, set_params, train_here
from trainers.chain import Chain
from trainers.commands import verify
from trainers.record import LINEAGE, STEPS, WEIGHTS


@pytest.fixture(autouse=True)
def _arithmetic() -> Iterator[None]:
    with arithmetic_kept():
        yield


def told(
    capsys: pytest.CaptureFixture[str], status: int, *argv: str, data: str = "decoded"
) -> dict[str, list[str]]:
    """What is said, by the word at the left."""
    assert verify.main([*argv, "--data", data]) == status
    said: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        name = line[:8].strip() or list(said)[-1]
        said.setdefault(name, []).append(line[9:])
    return said


def test_a_run_is_equal_to_itself(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, 0, str(finished))
    assert said["record"] == ["its files agree with each other"]
    assert said["changed"] == ["nothing: code and environment are the run's"]
    assert said["steps"] == ["making 0:8 of 8 again"]
    assert "the 8 steps, and every tensor of the weights file" in said["EQUAL"][0]


def test_some_steps_are_verified_alone(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, 0, str(finished), "--steps", "1:3")
    assert said["steps"] == ["making 0:3 of 8 again"]
    assert said["EQUAL"] == ["sample ids, losses and weights of the 3 steps"]


def test_a_tampered_file_is_told_and_nothing_is_trained(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(finished / LINEAGE, b'"lr": 0.05', b'"lr": 0.06')
    said = told(capsys, 1, str(finished))
    assert said.keys() == {"record"}
    assert "lineage.json was changed: params.lr" in said["record"][0]


def test_a_tampered_shard_is_told_with_its_path(
    project: Path, finished: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data, project / "copied")
    shard = project / "copied" / "train-00001.arrow"
    shard.write_bytes(shard.read_bytes()[:-300] + bytes(300))
    said = told(capsys, 1, str(finished), data="copied")
    assert len(said["data"]) == 1
    assert said["data"][0].startswith("copied/train-00001.arrow is not the file that the index")
    assert "steps" not in said


def test_params_changed_in_all_files_alike_are_found_by_the_steps(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(finished / WEIGHTS, b'"lr\\": 0.05', b'"lr\\": 0.06')
    record = json.loads((finished / LINEAGE).read_text())
    record["params"]["lr"] = 0.06
    record["weights"]["sha256"] = sha256((finished / WEIGHTS).read_bytes()).hexdigest()
    (finished / LINEAGE).write_text(json.dumps(record))
    said = told(capsys, 1, str(finished))
    assert said["DIFFERS"][0] == "first in step 0 (from 0), in the weights"
    assert "nothing that is recorded" in said["because"][0]


def test_a_changed_variable_is_named_as_the_cause(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    rewritten_step(finished)
    said = told(capsys, 1, str(finished))
    change = "variables.MKL_CBWR: none -> COMPATIBLE"
    assert said["changed"] == [change]
    assert said["DIFFERS"][0] == "first in step 0 (from 0), in the loss"
    assert said["DIFFERS"][1].startswith("the run had 0.25 (bits 3fd0000000000000)")
    assert said["because"] == [f"one of these has changed: {change}"]


def rewritten_step(finished: Path) -> None:
    """Another loss of the first step, with files that all agree on it."""
    kept, chain = Chain.read(finished / STEPS), Chain()
    for number in range(kept.num_steps):
        link = kept.link(number)
        chain.add(link.ids, link.loss if number else 0.25, link.weights)
    chain.write(finished / STEPS)
    old = kept.digest.encode()
    rewritten(finished / WEIGHTS, old, chain.digest.encode())
    record = json.loads((finished / LINEAGE).read_text())
    record["chain"] = chain.summary()
    record["weights"]["sha256"] = sha256((finished / WEIGHTS).read_bytes()).hexdigest()
    (finished / LINEAGE).write_text(json.dumps(record))


def test_under_ddp_the_number_of_ranks_is_a_possible_cause(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_params(project, reduction="ddp")
    out = train_here(project)
    rewritten_step(out)
    said = told(capsys, 1, str(out))
    assert "the number of ranks, now 1: under reduction ddp" in said["because"][0]


@pytest.mark.parametrize("text", ["3:3", "5:2", "-1:2", "0:9", "x:2", "4", "1:2:3"])
def test_steps_that_the_run_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(HeadraceError, match="no steps of the run") as caught:
        verify.steps_of(text, 8)
    assert caught.value.expected == "A:B with 0 <= A < B <= 8"


def test_either_end_of_the_steps_may_be_left_out() -> None:
    assert verify.steps_of(":", 8) == range(8)
    assert verify.steps_of("2:", 8) == range(2, 8)
    assert verify.steps_of(":3", 8) == range(3)


@pytest.mark.slow
def test_a_run_of_any_number_of_ranks_is_verified_by_two(finished: Path, project: Path) -> None:
    options = ["--standalone", "--nproc-per-node=2", "-m", "trainers", "verify", str(finished)]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, "--data", "decoded"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("EQUAL") == 1
