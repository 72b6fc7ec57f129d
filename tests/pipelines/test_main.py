"""`python -m pipelines` as a person meets it."""

import pytest

from pipelines import __main__ as verbs_for_people
from pipelines.core.errors import HeadraceError


def test_without_a_verb_every_verb_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs_for_people.main([]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [words[0] for words in listed] == verbs_for_people.verbs()
    assert all(len(words) > 3 for words in listed)


def test_a_mistyped_verb_is_refused_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs_for_people.main(["summry"]) == 2
    assert "There is no verb 'summry'. Did you mean 'summary'?" in capsys.readouterr().err


def test_a_fault_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(_argv: object) -> int:
        raise HeadraceError("The mill has no water.", where="headrace")

    monkeypatch.setattr("pipelines.commands.summary.main", main)
    assert verbs_for_people.main(["summary"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "The mill has no water."
