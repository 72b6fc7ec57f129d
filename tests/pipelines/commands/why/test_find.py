from pathlib import Path

import pytest

from pipelines.commands.why import built, find
from pipelines.commands.why.built import Built
from pipelines.core.errors import HeadraceError
from tests import edited as edits


@pytest.fixture
def project(in_edited: Path) -> Built:
    return built.read()


@pytest.mark.parametrize(
    "word",
    [
        "train/00001",
        "train/00001.png",
        "sample.zip::train/00001.png",
        "sample.zip/train/00001.png",
        "datasets/fashion/raw/sample.zip::train/00001.png",
        "./datasets/fashion/raw/sample.zip/train/00001.png",
    ],
)
def test_a_sample_is_found_by_key_or_by_any_way_to_its_file(project: Built, word: str) -> None:
    assert find.find(project, word).key == "train/00001"


def test_a_sample_is_found_by_the_start_of_its_digest(project: Built) -> None:
    row = project.row_of(project.clean, "train/00001")
    assert row is not None
    assert find.find(project, row["sha256"][:10]).key == "train/00001"
    assert find.find(project, row["sha256"].upper()).key == "train/00001"


def test_a_unique_start_of_a_key_will_do(project: Built) -> None:
    assert find.find(project, "train/ren").key == edits.RENAMED_TO


@pytest.mark.parametrize(
    ("word", "key", "reason"),
    [
        (edits.BLANKED, edits.BLANKED, "blank"),
        (f"sample.zip::{edits.TINY}.png", edits.TINY, "too_small"),
        (edits.BLURRED, edits.BLURRED, "blurred"),
    ],
)
def test_rejected_samples_are_found_as_kept_ones_are(
    project: Built, word: str, key: str, reason: str
) -> None:
    found = find.find(project, word)
    assert found.key == key
    assert [row["reason"] for row in found.rejections] == [reason]


def test_several_that_fit_are_named(project: Built) -> None:
    with pytest.raises(HeadraceError, match="60 samples start with 'test/'") as caught:
        find.find(project, "test/")
    assert "test/00000, test/00001" in str(caught.value.found)
    assert "and 52 more" in str(caught.value.found)


@pytest.mark.parametrize(
    ("word", "near"), [("tran/00001", "train/00001"), ("train/renmaed.png", edits.RENAMED_TO)]
)
def test_a_mistyped_key_is_answered_with_the_nearest(project: Built, word: str, near: str) -> None:
    with pytest.raises(HeadraceError, match=f"Did you mean '{near}'"):
        find.find(project, word)


@pytest.mark.parametrize("word", ["", "sample.zip", "ffffffffffffffff", "../x", "zebra"])
def test_what_is_no_sample_is_refused(project: Built, word: str) -> None:
    with pytest.raises(HeadraceError, match="There is no sample") as caught:
        find.find(project, word)
    assert "363 keys" in str(caught.value.found)
