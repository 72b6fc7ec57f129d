import re

from pipelines.commands.check.finding import Finding, Kind


def test_a_finding_is_one_line_with_all_that_is_needed_to_mend_it() -> None:
    finding = Finding("a.yaml:b", Kind.WRONG_PARAM, "a number", "'x'", "correct it")
    assert str(finding) == (
        "a.yaml:b: wrong-param: expected a number; found 'x'; to mend it, correct it"
    )


def test_findings_stand_in_the_order_of_their_places() -> None:
    places = ["b:x", "a:y", "a:x"]
    found = [Finding(place, Kind.WRONG_PARAM, "", "", "") for place in places]
    assert [finding.where for finding in sorted(found)] == ["a:x", "a:y", "b:x"]


def test_kinds_are_words_with_a_sentence() -> None:
    for kind in Kind:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", kind)
        assert kind.meaning.endswith(".")
