import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.commands import diff
from pipelines.commands.diff import workspace
from pipelines.core.errors import HeadraceError
from tests import edited as edits


def told(capsys: pytest.CaptureFixture[str], *revisions: str) -> dict[str, Any]:
    assert diff.main([*revisions, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def keys(rows: list[dict[str, str]]) -> list[str]:
    return [row["key"] for row in rows]


def test_every_edit_is_told_as_what_it_was(
    in_edited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "HEAD~1", "HEAD")
    assert keys(found["added"]) == [edits.ADDED]
    assert keys(found["removed"]) == [edits.REMOVED]
    renamed = {"key": edits.RENAMED_TO, "before": edits.RENAMED, "after": edits.RENAMED_TO}
    assert found["renamed"] == [renamed]
    assert keys(found["relabelled"]) == [edits.RELABELLED]
    assert found["relabelled"][0]["after"] == edits.other_label(found["relabelled"][0]["before"])
    assert found["moved"] == [{"key": edits.MOVED, "before": "train", "after": "val"}]
    assert keys(found["content_changed"]) == [edits.CHANGED]
    rejected = {row["key"]: (row["reason"], row["was"]) for row in found["newly_rejected"]}
    assert rejected == {
        edits.BLANKED: ("blank", "kept"),
        edits.UNKNOWN: ("unknown_label", "kept"),
        edits.TINY: ("too_small", "absent"),
        edits.COPY: ("exact_duplicate", "absent"),
        edits.BLURRED: ("blurred", "absent"),
    }
    assert found["no_longer_rejected"] == []


def test_both_sides_are_counted_in_full(
    in_edited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "HEAD~1", "HEAD")
    before, after = found["before"], found["after"]
    assert (before["samples_kept"], after["samples_kept"]) == (edits.NUM_BEFORE, edits.NUM_AFTER)
    assert sum(after["labels"].values()) == sum(after["splits"].values()) == edits.NUM_AFTER
    assert (before["samples_rejected"], after["samples_rejected"]) == (0, 5)


def test_the_workspace_is_compared_as_its_commit_is(
    in_edited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    committed, here = told(capsys, "HEAD~1", "HEAD"), told(capsys, "HEAD~1")
    assert here["after"].pop("revision") == "workspace"
    del committed["after"]["revision"]
    assert here == committed


def test_the_other_direction_says_what_came_back(
    in_edited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = told(capsys, "HEAD", "HEAD~1")
    states = {row["key"]: row["is"] for row in found["no_longer_rejected"]}
    assert states[edits.BLANKED] == "kept"
    assert states[edits.TINY] == "absent"


def test_a_person_reads_that_nothing_changed(
    in_edited: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert diff.main([]) == 0
    assert "No sample differs." in capsys.readouterr().out


def test_two_datasets_are_not_compared(in_edited: Path) -> None:
    here = workspace.version()
    with pytest.raises(HeadraceError, match="two datasets") as caught:
        diff.compared(here, replace(here, dataset="other", name="v1"))
    assert caught.value.found == "fashion and other"
