import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.card import Card, Folders, Source, Table
from pipelines.core.errors import HeadraceError
from pipelines.core.reasons import Reason
from pipelines.core.samples.find import find, in_folders, in_tables
from pipelines.core.samples.listing import Listing
from pipelines.core.samples.metadata import Columns
from pipelines.core.samples.raw import RawFile

COLUMNS = Columns("path", "label", "split")


def loose(*paths: str) -> list[RawFile]:
    return [RawFile(path, path, "", 9) for path in paths]


def packed(container: str, *members: str) -> list[RawFile]:
    return [RawFile(member, container, member, 9) for member in members]


def kept(listing: Listing) -> dict[str, tuple[str, str]]:
    return {sample.file.path: (sample.label, sample.split) for sample in listing.samples}


def lost(listing: Listing) -> dict[str, str]:
    return {dropped.path: dropped.reason.value for dropped in listing.dropped}


def table(
    text: str, files: Sequence[RawFile], path: str = "labels.csv", labels: list[str] | None = None
) -> Listing:
    whole = [*files, *([] if any(file.path == path for file in files) else loose(path))]
    header = "path,label,split\n"
    return in_tables(whole, path, COLUMNS, labels, lambda _: (header + text).encode())


def test_class_is_the_folder_that_holds_the_file() -> None:
    listing = in_folders(loose("cat/1.jpg", "pets/dog/2.jpg", "3.jpg"), None)
    assert kept(listing) == {"cat/1.jpg": ("cat", ""), "pets/dog/2.jpg": ("dog", "")}
    assert lost(listing) == {"3.jpg": "no_label"}


def test_outermost_split_folder_gives_the_split_and_files_outside_have_none() -> None:
    paths = ["Train/cat/1.jpg", "photos/valid/dog/2.jpg", "test/train/3.jpg", "test/4.jpg"]
    listing = in_folders(loose(*paths, "extra/cat/5.jpg"), None)
    assert kept(listing) == {
        "Train/cat/1.jpg": ("cat", "train"),
        "photos/valid/dog/2.jpg": ("dog", "val"),
        "test/train/3.jpg": ("train", "test"),
    }
    assert lost(listing) == {"test/4.jpg": "no_label", "extra/cat/5.jpg": "unknown_split"}


def test_files_that_cannot_be_read_are_dropped_with_their_own_reason() -> None:
    bad = RawFile("a.zip/../x.jpg", "a.zip", "../x.jpg", 9, Reason.UNSAFE_PATH, "leaves")
    assert lost(in_folders([*loose("cat/1.jpg"), bad], None)) == {"a.zip/../x.jpg": "unsafe_path"}
    assert lost(table("1.jpg,cat,\n", [*loose("1.jpg"), bad])) == {"a.zip/../x.jpg": "unsafe_path"}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("../1.jpg,cat,", "unsafe_path"),
        ("a/../../1.jpg,cat,", "unsafe_path"),
        ("..\\1.jpg,cat,", "unsafe_path"),
        ("/data/1.jpg,cat,", "unsafe_path"),
        ("C:\\data\\1.jpg,cat,", "unsafe_path"),
        ("file:///1.jpg,cat,", "unsafe_path"),
        ("2.jpg,cat,", "missing_file"),
        ("1.JPG,cat,", "missing_file"),
        ("1.jpg,,", "no_label"),
        ("1.jpg,bird,", "unknown_label"),
        ("1.jpg,cat,later", "unknown_split"),
        ("1.jpg,cat,,more", "malformed_row"),
    ],
)
def test_row_that_names_no_usable_file_gets_its_reason(row: str, reason: str) -> None:
    listing = table(f"{row}\n3.jpg,dog,test\n", loose("1.jpg", "3.jpg"), labels=["cat", "dog"])
    assert kept(listing) == {"3.jpg": ("dog", "test")}
    assert listing.dropped[0].reason == reason
    is_named = row.startswith("1.jpg") and reason != "malformed_row"
    assert ("not_listed" in lost(listing).values()) == (not is_named)


@pytest.mark.parametrize(
    "path", ["img/a b.png", "./img/a b.png", "img//a b.png", "img\\a b.png", "meta/../x"]
)
def test_path_is_looked_for_beside_the_metadata_file_and_below_raw(path: str) -> None:
    beside = table(f"{path},cat,\n", loose("meta/img/a b.png", "img/a b.png"), "meta/labels.csv")
    below = table(f"{path},cat,\n", loose("img/a b.png"), "meta/labels.csv")
    safe = ".." not in path
    assert list(kept(beside)) == (["meta/img/a b.png"] if safe else [])
    assert list(kept(below)) == (["img/a b.png"] if safe else [])


def test_path_is_found_whatever_its_unicode_form() -> None:
    assert list(kept(table("u\u0308ber.png,cat,\n", loose("\u00fcber.png")))) == ["\u00fcber.png"]


def test_files_that_no_row_names_are_counted_and_the_metadata_file_is_not() -> None:
    listing = table("1.jpg,cat,\n", [*loose("1.jpg", "2.jpg"), *packed("a.zip", "3.jpg")])
    assert lost(listing) == {"2.jpg": "not_listed", "a.zip/3.jpg": "not_listed"}


def test_path_in_several_archives_means_the_one_of_the_metadata_file() -> None:
    files = [*packed("a.zip", "1.jpg", "labels.csv"), *packed("b.zip", "1.jpg")]
    listing = table("1.jpg,cat,\n", files)
    assert [sample.file.container for sample in listing.samples] == ["a.zip"]
    assert lost(listing) == {"b.zip/1.jpg": "not_listed"}


def test_path_in_several_archives_is_ambiguous_for_a_loose_metadata_file() -> None:
    listing = table("1.jpg,cat,\n", [*packed("a.zip", "1.jpg"), *packed("b.zip", "1.jpg")])
    assert listing.samples == ()
    assert lost(listing) == {"1.jpg": "ambiguous_file"}
    assert "a.zip/1.jpg, b.zip/1.jpg" in listing.dropped[0].detail


def test_every_archive_may_bring_its_own_metadata_file() -> None:
    files = [*packed("a.zip", "1.jpg", "labels.csv"), *packed("b.zip", "1.jpg", "labels.csv")]
    listing = table("1.jpg,cat,\n", files)
    assert [sample.file.container for sample in listing.samples] == ["a.zip", "b.zip"]
    assert len({sample.key for sample in listing.samples}) == 2


def test_missing_metadata_file_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(HeadraceError) as caught:
        in_tables(loose("meta/labels.csv", "1.jpg"), "meta/label.csv", COLUMNS, None, lambda _: b"")
    assert "Did you mean 'meta/labels.csv'?" in str(caught.value)


def write_zip(path: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def card(samples: Table | Folders) -> Card:
    source = Source(url="a.zip")
    return Card(
        title="t",
        licence="MIT",
        origin="o",
        task="classification",
        sources=(source,),
        samples=samples,
    )


def test_both_layouts_are_found_inside_archives(tmp_path: Path) -> None:
    text = b"path,label\ncat/1.jpg,cat\ndog/2.jpg,dog\n"
    write_zip(tmp_path / "a.zip", {"cat/1.jpg": b"1", "dog/2.jpg": b"2", "labels.csv": text})
    by_table = Table(
        layout="table", metadata="labels.csv", path_column="path", label_column="label"
    )
    listed = find(tmp_path, card(by_table))
    assert kept(listed) == {"cat/1.jpg": ("cat", ""), "dog/2.jpg": ("dog", "")}
    assert listed.dropped == ()
    placed = find(tmp_path, card(Folders(layout="folders")))
    assert kept(placed) == kept(listed)
    assert lost(placed) == {"a.zip/labels.csv": "no_label"}


NAMES = st.sampled_from(["1.jpg", "2.jpg", "sub/3.jpg", "../4.jpg", "5.jpg", ""])
ROWS = st.lists(
    st.tuples(NAMES, st.sampled_from(["cat", "Cat", "dog", "bird", ""]), st.sampled_from("abc")),
    max_size=12,
)
ON_DISK = st.lists(st.sampled_from(["1.jpg", "2.jpg", "sub/3.jpg"]), unique=True)


@given(rows=ROWS, paths=ON_DISK, is_listed=st.booleans())
def test_every_row_and_every_file_is_told_of_once(
    rows: list[tuple[str, str, str]], paths: list[str], *, is_listed: bool
) -> None:
    splits = {"a": "train", "b": "", "c": "nonsense"}
    text = "".join(f"{path},{label},{splits[split]}\n" for path, label, split in rows)
    labels = ["cat", "dog"] if is_listed else None
    listing = table(text, loose(*paths), labels=labels)
    num_not_listed = list(lost(listing).values()).count("not_listed")
    num_rows = len(listing.samples) + len(listing.dropped) - num_not_listed
    blank = sum(not (path or label or splits[split]) for path, label, split in rows)
    assert num_rows == len(rows) - blank
    assert num_not_listed == len(set(paths) - {path for path, _, _ in rows})
    assert len({sample.key for sample in listing.samples}) == len(listing.samples)
