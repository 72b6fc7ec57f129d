"""`python -m pipelines` and `python -m trainers` as a person meets them."""

import signal
import subprocess
import sys
from types import ModuleType

import pytest

import pipelines.commands
import trainers.commands
from pipelines.core import verbs
from pipelines.core.errors import HeadraceError
from tests.project import ROOT

PACKAGES = (pipelines.commands, trainers.commands)


@pytest.mark.parametrize("commands", PACKAGES, ids=lambda it: it.__name__)
def test_without_a_verb_every_verb_is_explained(
    commands: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verbs.run(commands, []) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [words[0] for words in listed] == verbs.verbs(commands)
    assert all(len(words) > 3 for words in listed)


@pytest.mark.parametrize(
    ("package", "expected"),
    [("pipelines", {"check", "new", "summary"}), ("trainers", {"lineage", "replay", "verify"})],
)
def test_the_command_lists_its_verbs(package: str, expected: set[str]) -> None:
    command = [sys.executable, "-m", package]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert expected <= {line.split()[0] for line in done.stdout.splitlines()[2:]}


def test_a_mistyped_verb_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.run(pipelines.commands, ["summry"]) == 2
    assert "There is no verb 'summry'. Did you mean 'summary'?" in capsys.readouterr().err


def test_a_fault_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(_argv: object) -> int:
        raise HeadraceError("The mill has no water.", where="headrace")

    monkeypatch.setattr("pipelines.commands.summary.main", main)
    assert verbs.run(pipelines.commands, ["summary"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "The mill has no water."


def test_output_that_nobody_reads_on_ends_the_verb_quietly() -> None:
    code = (
        "import sys, types, pipelines.commands as c; from pipelines.core import verbs\n"
        "main = lambda argv: [print('sample') for _ in range(10**5)] and 0\n"
        "sys.modules['pipelines.commands.summary'] = types.SimpleNamespace(main=main)\n"
        "sys.exit(verbs.run(c, ['summary']))"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert started.stdout is not None
    assert started.stderr is not None
    assert started.stdout.readline() == b"sample\n"
    started.stdout.close()
    with started.stderr:
        assert started.stderr.read() == b""
    assert started.wait() == 128 + signal.SIGPIPE
