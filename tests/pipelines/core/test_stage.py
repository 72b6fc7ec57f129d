import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from pydantic import Field

from pipelines.core import output, stage
from pipelines.core.errors import HeadraceError
from pipelines.core.params import params
from pipelines.core.report import Report
from pipelines.core.stage import Job


@params
class Params:
    times: Annotated[int, Field(ge=1)]


def repeat(job: Job[Params]) -> Report:
    text = job.inputs["text"].read_text()
    (job.out / "text").write_text(text * job.params.times)
    return {"num_characters": len(text) * job.params.times}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("repeat: {times: 2}\n")
    Path("in").write_text("ab")
    return tmp_path


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def execute(run: Callable[[Job[Params]], Report] = repeat, *more: str) -> Report:
    arguments = more or ("--text", "in", "--out", "d/out", "--report", "d/r.json")
    return stage.execute(SimpleNamespace(Params=Params, run=run), "repeat", arguments)


def test_a_stage_writes_its_out_and_its_report(project: Path) -> None:
    execute()
    assert Path("d/out/text").read_text() == "abab"
    assert json.loads(Path("d/r.json").read_text()) == {"num_characters": 4}
    assert names("d") == [".lock-out", "out", "r.json"]


def test_an_out_with_an_ending_is_one_file(project: Path) -> None:
    def page(job: Job[Params]) -> Report:
        job.out.write_text("x" * job.params.times)
        return {}

    for times in (2, 3):
        Path("params.yaml").write_text(f"repeat: {{times: {times}}}\n")
        execute(page, "--text", "in", "--out", "d/page.html")
        assert Path("d/page.html").read_text() == "x" * times
    assert names("d") == [".lock-page.html", "page.html"]


def test_a_stage_that_fails_leaves_the_old_out_and_report(project: Path) -> None:
    execute()

    def fail(job: Job[Params]) -> Report:
        (job.out / "text").write_text("in part")
        message = "no"
        raise HeadraceError(message)

    with pytest.raises(HeadraceError, match="no"):
        execute(fail)
    assert Path("d/out/text").read_text() == "abab"
    assert names("d") == [".lock-out", "out", "r.json"]


def test_a_stage_that_loses_a_sample_writes_nothing(project: Path) -> None:
    with pytest.raises(HeadraceError, match="lost count"):
        execute(lambda _: {"samples_in": 2, "samples_kept": 1, "samples_rejected": 0})
    assert not Path("d/out").exists()
    assert not Path("d/r.json").exists()


@pytest.mark.parametrize(
    "arguments", [("--text", "in"), ("in", "out"), ("--text", "in", "--out"), ("--", "in")]
)
def test_a_command_line_of_another_form_is_told(project: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(HeadraceError, match="a way that it does not know"):
        execute(repeat, *arguments)


def test_an_input_that_is_not_there_is_told_with_the_command(project: Path) -> None:
    with pytest.raises(HeadraceError, match=r"--text is not there(.|\n)*dvc repro repeat"):
        execute(repeat, "--text", "nowhere", "--out", "out")


def test_a_url_reaches_a_stage_that_takes_one_and_no_other(project: Path) -> None:
    def tell(job: Job[Params]) -> Report:
        return {"source": str(job.source("text"))}

    command = ("--text", "s3://bucket/a", "--out", "out")
    able = SimpleNamespace(Params=Params, run=tell, MAY_BE_URL=("text",))
    assert stage.execute(able, "repeat", command) == {"source": "s3://bucket/a"}
    assert stage.execute(able, "repeat", ("--text", "in", *command[2:])) == {"source": "in"}
    with pytest.raises(HeadraceError, match="--text is not there"):
        execute(tell, *command)


def test_another_fault_of_the_system_keeps_its_own_words(project: Path) -> None:
    def forbid(job: Job[Params]) -> Report:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(PermissionError):
        execute(forbid)


def test_a_second_run_on_the_same_out_is_refused_by_the_process_that_holds_it(
    project: Path,
) -> None:
    with (
        output.exclusive(Path("d/out")),
        pytest.raises(HeadraceError, match=f"process {os.getpid()} holds its lock"),
    ):
        execute()
    execute()


def square(number: int) -> int:
    return number * number


def test_a_job_maps_in_parallel_and_in_order(project: Path) -> None:
    def run(job: Job[Params]) -> Report:
        first = job.map(square, [1, 2, 3], describe="numbers squared")
        return {"squares": [*first, *job.map(square, [4], describe="numbers squared")]}

    assert execute(run) == {"squares": [1, 4, 9, 16]}


MODULE = """
import time
from pathlib import Path
from pipelines.core import stage
from pipelines.core.params import params

@params
class Params:
    wait_s: float

def run(job):
    Path("started").touch()
    job.inputs["text"].read_text()
    time.sleep(job.params.wait_s)
    (job.out / "done").touch()
    return {}

if __name__ == "__main__":
    stage.main("wait")
"""


@pytest.fixture
def module(project: Path) -> dict[str, Any]:
    root = Path(__file__).parents[3]
    Path("wait.py").write_text(MODULE)
    Path("params.yaml").write_text("wait: {wait_s: 60}\n")
    return {"env": {**os.environ, "PYTHONPATH": str(root), "DVC_ROOT": "."}}


COMMAND = [sys.executable, "-m", "wait", "--text", "in", "--out", "d/out"]


def wait_for(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_stage_run_as_a_module_exits_with_words_and_no_traceback(module: dict[str, Any]) -> None:
    Path("params.yaml").write_text("wait: {wait_s: soon}\n")
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=False, **module)
    assert done.returncode == 1
    assert "ERROR in wait: params.yaml has one fault" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_stage_run_as_a_module_notes_the_files_that_it_opened(module: dict[str, Any]) -> None:
    Path("params.yaml").write_text("wait: {wait_s: 0}\n")
    subprocess.run(COMMAND, check=True, **module)
    assert Path("d/out/done").exists()
    assert json.loads(Path(".state/opened/wait.json").read_text()) == {
        "arguments": ["--text", "in", "--out", "d/out"],
        "opened": ["in", "params.yaml", "wait.py"],
    }


def test_an_orphan_dies_with_its_parent_and_frees_its_out(module: dict[str, Any]) -> None:
    # A parent that starts the stage as DVC does, and is killed while the stage runs.
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run({COMMAND!r})"], **module
    )
    wait_for(Path("started").exists)
    child = int(Path("d/.lock-out").read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists() or is_zombie(child))
    with output.exclusive(Path("d/out")):
        assert not Path("d/out").exists()


def is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_run_after_a_kill_starts_afresh(module: dict[str, Any]) -> None:
    killed = subprocess.Popen(COMMAND, **module)
    wait_for(Path("started").exists)
    killed.kill()
    killed.wait()
    (Path("d/.tmp-out") / "left").touch()
    Path("params.yaml").write_text("wait: {wait_s: 0}\n")
    subprocess.run(COMMAND, check=True, **module)
    assert names("d/out") == ["done"]
