import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainers import environment as module
from trainers.environment import changes, environment

ROOT = Path(__file__).parents[2]
SHOW = "import json; from trainers.environment import environment; print(json.dumps(environment()))"


def elsewhere(**variables: str) -> dict[str, object]:
    """The environment of another process, in another folder, with these variables set."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        cwd="/",
        capture_output=True,
        check=True,
        text=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_it_is_json_and_equal_in_another_process_and_folder() -> None:
    here = environment()
    here["threads"] = 1
    assert json.loads(json.dumps(here)) == elsewhere(
        OMP_NUM_THREADS="1", HOSTNAME="other", RANK="1", WORLD_SIZE="2", HOME="/nowhere"
    )


def test_what_changes_bits_is_seen() -> None:
    before = elsewhere(OMP_NUM_THREADS="1")
    after = elsewhere(OMP_NUM_THREADS="2", ATEN_CPU_CAPABILITY="default", MKL_CBWR="COMPATIBLE")
    told = changes(before, after)
    assert "threads: 1 -> 2" in told
    assert "variables.MKL_CBWR: none -> COMPATIBLE" in told
    assert [line for line in told if line.startswith("cpu.capability: ")]
    assert len(told) == 3


def test_the_number_of_threads_is_the_effective_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "77")  # too late: torch has read it
    assert environment()["threads"] == torch.get_num_threads()


def test_gpus_count_by_kind_and_not_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, major, minor = "NVIDIA H200", 9, 0

    def kinds(num_gpus: int) -> object:
        monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
        return environment()["gpus"]

    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: Properties)
    monkeypatch.setattr(module, "_driver", lambda: "580.65.06")
    assert kinds(1) == kinds(8)
    assert kinds(1) == [{"name": "NVIDIA H200", "capability": "9.0", "driver": "580.65.06"}]
    assert kinds(0) == []


def test_the_features_of_the_cpu_are_found() -> None:
    machine = environment()["cpu"]
    assert {"avx2", "asimd"} & set(machine["features"]) or machine["capability"] == "DEFAULT"


def test_equal_environments_have_no_changes() -> None:
    assert changes(environment(), environment()) == []


def test_a_fact_that_one_of_them_lacks_is_a_change() -> None:
    assert changes({"a": {"b": 1}}, {"a": {"c": 2}}) == ["a.b: 1 -> none", "a.c: none -> 2"]
