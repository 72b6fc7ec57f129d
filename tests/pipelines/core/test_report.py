from pathlib import Path

import pytest

from pipelines.core import report
from pipelines.core.errors import HeadraceError


def test_equal_reports_are_equal_text_whatever_their_order() -> None:
    left: report.Report = {"b": 1, "a": {"d": [1.0, 2], "c": "é"}}
    right: report.Report = {"a": {"c": "é", "d": [1.0, 2]}, "b": 1}
    assert report.dumps(left) == report.dumps(right)
    assert report.dumps({"b": 1, "a": "é"}) == '{\n  "a": "é",\n  "b": 1\n}\n'


def test_floats_are_rounded_and_what_json_lacks_is_null() -> None:
    assert report.rounded({"a": [1 / 3, float("nan")], "b": float("inf"), "c": 123456789}) == {
        "a": [0.333333, None],
        "b": None,
        "c": 123456789,
    }


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    report.write(tmp_path / "reports" / "clean.json", {"a": 1})
    assert (tmp_path / "reports" / "clean.json").read_text() == '{\n  "a": 1\n}\n'


@pytest.mark.parametrize(
    "counts",
    [
        {"samples_in": 3, "samples_kept": 1, "samples_rejected": 1},
        {"samples_in": 3, "samples_kept": 3},
        {"samples_in": 3.0, "samples_kept": 3, "samples_rejected": 0},
    ],
)
def test_a_lost_sample_is_an_error(counts: report.Report) -> None:
    with pytest.raises(HeadraceError, match="lost count"):
        report.check_conserved("clean", counts)


def test_balanced_counts_and_reports_without_samples_pass() -> None:
    report.check_conserved("clean", {"samples_in": 3, "samples_kept": 1, "samples_rejected": 2})
    report.check_conserved("train", {"accuracy": 1.0})
