"""The card of a dataset: what is accepted, and that every fault is told at once, by its key."""

import textwrap
from pathlib import Path

import pytest

from pipelines.core import card
from pipelines.core.errors import HeadraceError

GOOD = """
title: Cats and dogs
licence: MIT
origin: our window
task: classification
sources:
  - url: source
samples:
  layout: folders
"""


def load(folder: Path, text: str) -> card.Card:
    path = folder / "dataset.yaml"
    path.write_text(text, encoding="utf-8")
    return card.load(path)


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(HeadraceError) as caught:
        load(folder, text)
    return str(caught.value)


def test_smallest_card_is_accepted(tmp_path: Path) -> None:
    told = load(tmp_path, GOOD)
    assert told.labels is None
    assert told.description is None
    assert told.sources == (card.Source(url="source"),)
    assert told.samples == card.Folders(layout="folders")


def test_fullest_card_is_accepted(tmp_path: Path) -> None:
    told = load(
        tmp_path,
        f"""
title: t
description: d
licence: MIT
origin: o
task: classification
labels: [dog, cat]
sources:
  - {{url: "s3://b/x.zip", sha256: {"AB" * 32}, num_bytes: 7, to: ./2026//x.zip}}
samples: {{layout: table, metadata: a/labels.csv, path_column: p, label_column: l, split_column: s}}
""",
    )
    assert told.labels == ("dog", "cat")
    assert told.sources[0].sha256 == "ab" * 32
    assert told.sources[0].to == "2026/x.zip"
    assert isinstance(told.samples, card.Table)
    assert told.samples.split_column == "s"


def test_bundled_card_is_accepted() -> None:
    assert card.load(Path("datasets/fashion/dataset.yaml")).labels is not None


def test_all_faults_are_told_at_once_with_their_keys(tmp_path: Path) -> None:
    told = complaint(
        tmp_path,
        """
titlle: x
title: ' '
licence: 3
task: classifikation
sources:
  - {url: a, sha: b}
  - 3
  - {num_bytes: -1}
samples: {layout: tables}
""",
    )
    for line in (
        "titlle: unknown key. Did you mean 'title'?",
        "title: expected some text, found none",
        "licence: expected a valid string, found 3 (a whole number)",
        "origin: missing, expected a value",
        "task: expected 'classification', found 'classifikation' (text)",
        "sources.0.sha: unknown key.",
        "sources.1: expected `url: ...`, found 3 (a whole number)",
        "sources.2.url: missing, expected a value",
        "sources.2.num_bytes: expected greater than or equal to 0",
        "samples.layout: expected one of table, folders, webdataset, parquet, found 'tables'",
    ):
        assert f"\n  {line}" in told
    assert "dataset.yaml has 10 faults:" in told


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ("[cat]", "expected at least two labels, found 1"),
        ("[Cat, dog, ' cat']", "'Cat' and ' cat' are one label"),
        ("[\N{LATIN SMALL LETTER E WITH ACUTE}, e\N{COMBINING ACUTE ACCENT}]", "are one label"),
        ("[cat, ' ']", "expected names, found ' '"),
        (r'["ca\nt", dog]', r"expected names without control characters, found 'ca\nt'"),
        ("[0, 1]", "labels.0: expected a valid string, found 0 (a whole number)"),
    ],
)
def test_labels_that_are_none_are_refused(tmp_path: Path, labels: str, told: str) -> None:
    assert told in complaint(tmp_path, f"{GOOD}labels: {labels}\n")


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hush-hush@host/a.zip",
        "s3://key:hush-hush@bucket/a.zip",
        "https://host/a.zip?X-Amz-Signature=hush-hush",
        "https://host/a.zip?sv=1&sig=hush-hush",
        "https://host/a.zip?api_key=hush-hush",
        "zip://a.csv::https://me:hush-hush@host/a.zip",
    ],
)
def test_secret_in_a_url_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    told = complaint(tmp_path, GOOD.replace("source\n", f"{url}\n"))
    assert "holds a secret" in told
    assert "hush-hush" not in told


@pytest.mark.parametrize(
    "url", ["https://host/a.zip?download=1&key_frame=2", "ssh://me@host/a.zip", "a@b:c/d.zip"]
)
def test_url_without_a_secret_is_accepted(tmp_path: Path, url: str) -> None:
    assert load(tmp_path, GOOD.replace("source\n", f"{url}\n")).sources[0].url == url


def test_url_with_a_control_character_is_refused(tmp_path: Path) -> None:
    # A path that holds a NUL byte is no OSError to Python, but a ValueError.
    told = complaint(tmp_path, GOOD.replace("source\n", r'"sou\0rce"' + "\n"))
    assert "sources.0.url: expected a path or URL without control characters" in told


@pytest.mark.parametrize("url", ["pipe:curl host", "'| ls'", "' pipe:ls'"])
def test_command_in_place_of_a_url_is_refused(tmp_path: Path, url: str) -> None:
    assert "nothing here runs a shell" in complaint(tmp_path, GOOD.replace("source\n", f"{url}\n"))


@pytest.mark.parametrize("to", ["../x", "/etc/x", "a/../../x", ".", "''"])
def test_place_that_leaves_raw_is_refused(tmp_path: Path, to: str) -> None:
    told = complaint(tmp_path, GOOD.replace("source\n", f"source\n    to: {to}\n"))
    assert "sources.0.to: expected a relative path below raw/" in told


def test_source_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    told = complaint(tmp_path, GOOD.replace("- url: source\n", "- url: source\n  - url: source\n"))
    assert "sources.1.url: the same as that of sources.0" in told


@pytest.mark.parametrize("sources", ["[]", "a.zip", "{url: a.zip}"])
def test_sources_that_are_no_list_are_refused(tmp_path: Path, sources: str) -> None:
    text = GOOD.replace("sources:\n  - url: source\n", f"sources: {sources}\n")
    assert "sources: expected a list of at least one `- url: ...`" in complaint(tmp_path, text)


def test_sha256_of_another_form_is_refused(tmp_path: Path) -> None:
    told = complaint(tmp_path, GOOD.replace("source\n", "source\n    sha256: abc\n"))
    assert "sources.0.sha256: expected 64 hexadecimal digits, found 'abc' (text)" in told


def test_missing_card_says_where_cards_are_explained(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=r"There is no dataset\.yaml") as caught:
        card.load(tmp_path / "dataset.yaml")
    assert caught.value.fix is not None
    assert "datasets/README.md" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("title: a\ntitle: b\n", "duplicate key"),
        ("title:\n\t- a\n", "a tab where YAML wants spaces"),
        ("- a\n", "must hold a mapping"),
        ("", "must hold a mapping"),
    ],
)
def test_card_that_is_no_mapping_is_refused(tmp_path: Path, text: str, told: str) -> None:
    assert told in complaint(tmp_path, text)


def test_card_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert load(tmp_path, "\N{ZERO WIDTH NO-BREAK SPACE}" + GOOD).title == "Cats and dogs"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("./a//b.zip", "a/b.zip"),
        ("a b/\N{LATIN SMALL LETTER E WITH ACUTE}", "a b/\N{LATIN SMALL LETTER E WITH ACUTE}"),
        (".hidden/..x", ".hidden/..x"),
        ("a/../b", None),
        ("/a", None),
        ("a\0b", None),
        ("", None),
        ("./", None),
    ],
)
def test_safe_path_is_clean_or_none(text: str, path: str | None) -> None:
    assert card.safe_path(text) == path


@pytest.mark.parametrize("layout", ["webdataset", "parquet"])
def test_numbers_of_classes_need_a_list_of_their_names(tmp_path: Path, layout: str) -> None:
    keys = {
        "webdataset": "label_ending: cls",
        "parquet": "image_column: image, label_column: label",
    }[layout]
    samples = f"{{layout: {layout}, {keys}, integer_labels: true}}"
    text = f"""
    title: t
    licence: MIT
    origin: o
    task: classification
    sources: [{{url: raw}}]
    samples: {samples}
    """
    path = tmp_path / "dataset.yaml"
    path.write_text(textwrap.dedent(text))
    with pytest.raises(HeadraceError, match=r"samples.integer_labels: expected `labels:`"):
        card.load(path)
    path.write_text(textwrap.dedent(text) + "labels: [cat, dog]\n")
    assert card.load(path).samples.layout == layout
