import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.core import process
from pipelines.core.errors import HeadraceError

ROOT = Path(__file__).parents[3]
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
print(child.stdout.readline().decode(), flush=True)
sys.stdin.read()
"""
CHILD = """
import signal, sys
from pathlib import Path
from pipelines.core import process

def end(*_):
    Path("told").touch()
    sys.exit()

signal.signal(signal.SIGTERM, end)
process.die_with_parent()
print("ready", flush=True)
signal.pause()
"""


def test_another_system_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(HeadraceError, match="runs on Linux only"):
        process.require_linux()


def test_a_process_is_told_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdin
    assert parent.stdout
    with parent.stdin, parent.stdout:
        assert parent.stdout.readline().strip() == b"ready"
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        end = time.monotonic() + 30
        while not (tmp_path / "told").exists():
            assert time.monotonic() < end, "the child was not told"
            time.sleep(0.02)


def test_lines_begin_with_the_stage(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("headrace")
    before = logger.handlers, logger.level, logger.propagate
    try:
        process.configure_logging()
        logging.getLogger("headrace.clean").info("%d kept", 3)
        assert capsys.readouterr().err == "clean: 3 kept\n"
    finally:
        logger.handlers, logger.level, logger.propagate = before
