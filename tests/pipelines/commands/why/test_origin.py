from pathlib import Path
from typing import Any

import pytest

from pipelines.commands.why import origin
from pipelines.core.card import Card, Folders, Source, Table
from pipelines.core.route import Settings

SHARES = {"val_fraction": 0.1, "test_fraction": 0.1}
LINES = "path,label,split\nx/1.png,Bag,test\nx/2.png,Coat,\n"
TABLE = Table(
    layout="table",
    metadata="a/labels.csv",
    path_column="path",
    label_column="label",
    split_column="split",
)


def told(samples: Table | Folders, *sources: Source) -> Card:
    return Card(
        title="Mill",
        licence="MIT",
        origin="here",
        task="classification",
        sources=sources or (Source(url="https://example.org/data/a.zip"),),
        samples=samples,
    )


def row(container: str, member: str = "", **more: object) -> dict[str, Any]:
    values = {"label": "Bag", "label_index": 1, "split": "train", "sha256": "0" * 64}
    return {"container": container, "member": member, **values, **more}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "labels.csv").write_text(LINES)
    return tmp_path


@pytest.mark.parametrize(
    ("container", "url"),
    [
        ("a.zip", "https://example.org/data/a.zip"),
        ("b/2.png", "s3://mill/b/"),
        ("deep/er/3.png", "/srv/c"),
        ("bb/2.png", None),
    ],
)
def test_a_file_comes_from_the_source_that_was_put_in_its_place(
    container: str, url: str | None
) -> None:
    sources = (
        Source(url="https://example.org/data/a.zip"),
        Source(url="s3://mill/b/"),
        Source(url="/srv/c", to="deep/er"),
    )
    assert origin.source(told(TABLE, *sources), container) == url


def test_the_only_source_is_the_source_of_everything() -> None:
    assert origin.source(told(TABLE), "x/1.png") == "https://example.org/data/a.zip"


def test_label_and_split_are_told_with_the_line_that_gave_them(raw: Path) -> None:
    card, sample = told(TABLE), row("a/x/1.png", split="test")
    line = origin.line_of(card, raw, sample)
    assert line is not None
    assert origin.label(card, sample, line).text == "Bag (class 1), from line 2 of a/labels.csv"
    split = origin.split(card, sample, line, Settings(SHARES, None))
    assert split.text == "test, given by column 'split' of line 2 of a/labels.csv"
    assert split.values["split_by"] == "given"


def test_a_line_without_a_split_leaves_it_to_the_hash(raw: Path) -> None:
    card, sample = told(TABLE), row("a/x/2.png", sha256="1" * 64)
    line = origin.line_of(card, raw, sample)
    assert line is not None
    split = origin.split(card, sample, line, Settings(SHARES, None))
    assert split.text.startswith("train, the line gives none, so drawn by a hash")
    assert "val_fraction 0.1" in split.text


def test_a_sample_that_no_line_names_has_none(raw: Path) -> None:
    assert origin.line_of(told(TABLE), raw, row("a/x/3.png")) is None
    assert origin.line_of(None, raw, row("a/x/1.png")) is None
    assert origin.line_of(told(Folders(layout="folders")), raw, row("a/x/1.png")) is None


def test_in_class_folders_the_folders_give_label_and_split() -> None:
    card, sample = told(Folders(layout="folders")), row("test/bag/1.png", split="test")
    assert origin.label(card, sample, None).text == "Bag (class 1), from the folder test/bag"
    split = origin.split(card, sample, None, Settings(SHARES, None))
    assert split.text == "test, given by the folder 'test'"


def test_without_a_split_folder_the_hash_draws() -> None:
    card, sample = told(Folders(layout="folders")), row("bag/1.png", sha256="1" * 64)
    split = origin.split(card, sample, None, Settings(SHARES, None))
    assert split.values["split_by"] == "drawn"


def test_a_split_that_the_hash_would_not_draw_was_given() -> None:
    split = origin.split(None, row("bag/1.png", split="val"), None, Settings(SHARES, None))
    assert split.values["split_by"] == "given"


def test_a_member_lies_where_its_archive_does() -> None:
    assert origin.virtual_path(row("a/b.zip", "x/1.png")) == "a/x/1.png"
    assert origin.virtual_path(row("a/1.png")) == "a/1.png"


@pytest.mark.parametrize("policy", ["keep_together", "drop"])
def test_the_split_of_a_sample_with_near_duplicates_is_that_of_its_cluster(policy: str) -> None:
    card, sample = told(Folders(layout="folders")), {**row("bag/1.png"), "cluster": "bag/0"}
    used = {**SHARES, "near_duplicates": policy}
    assert origin.split(card, sample, None, Settings(used, None)).values["split_by"] == "cluster"
    given = {**row("test/bag/1.png", split="test"), "cluster": "bag/0"}
    assert origin.split(card, given, None, Settings(used, None)).values["split_by"] == "given"
