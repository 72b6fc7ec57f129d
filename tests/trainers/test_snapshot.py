import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trainers import snapshot
from trainers.snapshot import MANIFEST, META, STATE, Damaged, Keep, clean, found, prune, read, write

TENSORS = {"weight": torch.arange(600.0), "step": torch.tensor(3)}


def saved(folder: Path, step: int = 20) -> Path:
    write(folder, step, TENSORS, json.dumps({"step": step}))
    return folder / f"step-{step:08d}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    step, tensors, meta = read(saved(tmp_path / "run"))
    assert (step, meta) == (20, {"step": 20})
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_it_holds_what_its_docstring_says(tmp_path: Path) -> None:
    path = saved(tmp_path / "run")
    assert names(path) == sorted([MANIFEST, META, STATE])
    assert torch.equal(load_file(path / STATE)["weight"], TENSORS["weight"])
    assert json.loads((path / MANIFEST).read_text())["files"].keys() == {STATE, META}


def test_everything_is_flushed_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    calls: list[str] = []
    rename = os.rename

    def named(old: Path, new: Path) -> None:
        calls.append(f"name {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr("os.rename", named)
    monkeypatch.setattr(snapshot, "fsync_path", lambda path: calls.append(f"flush {path.name}"))
    saved(tmp_path / "run")
    assert calls == [
        f"flush {snapshot.STATE}",
        f"flush {snapshot.META}",
        f"flush {snapshot.MANIFEST}",
        "flush step-00000020.tmp",
        "name step-00000020",
        "flush run",
    ]


def test_folders_that_are_made_are_flushed_into_those_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(snapshot, "fsync_path", flushed.append)
    saved(tmp_path / "state" / "run")
    assert {tmp_path, tmp_path / "state", tmp_path / "state" / "run"} <= set(flushed)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", [STATE, META, MANIFEST])
@pytest.mark.parametrize("harm", [flip_a_bit, cut, empty, Path.unlink])
def test_damage_is_found(tmp_path: Path, harm: Callable[[Path], None], name: str) -> None:
    path = saved(tmp_path / "run")
    harm(path / name)
    with pytest.raises(Damaged):
        read(path)


def test_every_flipped_bit_of_the_manifest_is_harmless_or_found(tmp_path: Path) -> None:
    path = saved(tmp_path / "run")
    whole, num_found = (path / MANIFEST).read_bytes(), 0
    for position in range(len(whole)):
        flipped = bytes([whole[position] ^ 4])
        (path / MANIFEST).write_bytes(whole[:position] + flipped + whole[position + 1 :])
        try:
            step, tensors, meta = read(path)
        except Damaged:
            num_found += 1
        else:  # blank space
            assert (step, meta) == (20, {"step": 20})
            assert torch.equal(tensors["weight"], TENSORS["weight"])
    assert num_found > len(whole) / 2


def test_one_under_the_name_of_another_step_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "run", 20)
    with pytest.raises(Damaged, match="another step"):
        read(path.rename(tmp_path / "run" / "step-00000030"))


def test_one_of_another_run_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    (tmp_path / "theirs").rename(tmp_path / "ours")
    with pytest.raises(Damaged, match="another run"):
        read(tmp_path / "ours" / "step-00000020")


def test_a_folder_of_another_name_is_no_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path / "run", 20)
    for name in ("step-00000030.tmp", "step-3", "notes", "step-00000040.old.tmp"):
        (tmp_path / "run" / name).mkdir()
    assert [path.name for path in found(tmp_path / "run")] == ["step-00000020"]


def test_newest_first_and_the_one_that_stepped_aside_last(tmp_path: Path) -> None:
    for step in (9, 123456789, 20):
        saved(tmp_path / "run", step)
    (tmp_path / "run" / "step-00000020.old").mkdir()
    assert [path.name for path in found(tmp_path / "run")] == [
        "step-123456789",
        "step-00000020",
        "step-00000020.old",
        "step-00000009",
    ]


def test_one_that_stepped_aside_is_whole_and_comes_back(tmp_path: Path) -> None:
    path = saved(tmp_path / "run")
    aside = path.rename(path.with_suffix(".old"))
    assert read(aside)[0] == 20
    clean(tmp_path / "run")
    assert names(tmp_path / "run") == ["step-00000020"]


def test_pruning_keeps_the_last_ones_up_to_the_step(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        saved(tmp_path / "run", step)
    prune(tmp_path / "run", 3, Keep(2))
    assert names(tmp_path / "run") == ["step-00000002", "step-00000003"]


def test_pruning_keeps_one_to_go_back_to(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        saved(tmp_path / "run", step)
    prune(tmp_path / "run", 5, Keep(1, up_to=2))
    assert names(tmp_path / "run") == ["step-00000002", "step-00000005"]


def test_pruning_keeps_multiples(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5, 6):
        saved(tmp_path / "run", step)
    prune(tmp_path / "run", 5, Keep(1, every=2))
    assert names(tmp_path / "run") == [f"step-0000000{step}" for step in (2, 4, 5)]


def test_an_error_inside_safetensors_keeps_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "STATE", "missing/state.safetensors")
    with pytest.raises(OSError, match="No such file") as caught:
        saved(tmp_path / "run")
    assert caught.value.errno == errno.ENOENT


KILL_EVERYWHERE = """
import os, shutil, sys
from pathlib import Path
import torch
from trainers import snapshot
from trainers.checkpoint import Checkpoints

torch.set_num_threads(1)
CALLS = [(os, "fsync"), (os, "rename"), (os, "mkdir"), (os, "rmdir"), (os, "unlink"),
         (os, "open"), (Path, "write_text"), (snapshot, "save_file")]

def kill_before_call(number):
    left = [number]
    def guarded(owner, name, real):
        def call(*arguments, **named):
            if left[0] == 0:
                if name in ("write_text", "save_file"):  # die in the middle of the file
                    path = Path(arguments[0] if name == "write_text" else arguments[1])
                    path.write_bytes(b"half of it")
                os._exit(9)
            left[0] -= 1
            return real(*arguments, **named)
        setattr(owner, name, call)
    for owner, name in CALLS:
        guarded(owner, name, getattr(owner, name))

def state(value):
    return {"weight": torch.full((50,), float(value))}

def save(folder, step, value):
    with Checkpoints(folder, 1) as checkpoints:
        checkpoints.save(step, state(value), {"value": value})

def newest(folder):
    with Checkpoints(folder, 1) as checkpoints:
        loaded = checkpoints.newest()
    assert loaded is not None, "no checkpoint is left"
    value = loaded.meta["value"]
    assert torch.equal(loaded.tensors["weight"], state(value)["weight"])
    return value

scratch = Path(sys.argv[1])
for number in range(1000):
    folder = scratch / str(number)
    save(folder, 10, 10)
    child = os.fork()
    if child == 0:
        kill_before_call(number)
        save(folder, 20, 20)  # a new step, whose predecessor is then removed
        save(folder, 20, 21)  # the same step again
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    survived = newest(folder)
    print(number, code, survived)
    save(folder, 30, 30)
    assert newest(folder) == 30
    assert [path.name for path in folder.iterdir()] == ["step-00000030"], "leftovers"
    if code == 0:
        break
    assert code == 9
"""


def test_killed_anywhere_a_whole_checkpoint_is_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILL_EVERYWHERE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    outcomes = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    values = [value for _, _, value in outcomes]
    assert values == sorted(values)  # the later the kill, the newer what is left
    assert set(values) == {10, 20, 21}
    assert len(values) > 30
