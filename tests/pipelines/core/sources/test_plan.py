"""What is refused before a byte is brought: places that clash or leave, sources nobody watches."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.core.card import Source
from pipelines.core.errors import HeadraceError
from pipelines.core.sources import plan as planning
from pipelines.core.sources.plan import Plan, check_places, check_same, check_watched, plan
from pipelines.core.sources.remote import Patience

PATIENCE = Patience(1, 1.0)
SHA256_OF_1 = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"


def made(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"1")


def planned(folder: Path, url: str, to: str | None = None) -> Plan:
    return plan(Source(url=url, to=to), folder=folder, patience=PATIENCE)


def places(folder: Path, url: str, to: str | None = None) -> list[str]:
    return [item.to for item in planned(folder, url, to).items]


def test_file_goes_to_the_last_part_of_its_url_and_a_folder_to_the_top(tmp_path: Path) -> None:
    made(tmp_path, "in/a.zip", "in/cat/1.jpg")
    assert places(tmp_path, "in/a.zip") == ["a.zip"]
    assert places(tmp_path, "in/a.zip", "x/b.zip") == ["x/b.zip"]
    assert places(tmp_path, "in") == ["a.zip", "cat/1.jpg"]
    assert places(tmp_path, "in", "x") == ["x/a.zip", "x/cat/1.jpg"]


@pytest.mark.parametrize(
    ("name", "to", "place", "ending"),
    [
        ("a.tar.gz", None, "a.tar", ".tar.gz"),
        ("A.TGZ", None, "A.tar", ".tgz"),
        ("a.tar.xz", "b.tar", "b.tar", ".tar.xz"),
        ("a", "b.tar.bz2", "b.tar", ".tar.bz2"),
        ("a.csv.gz", None, "a.csv.gz", ""),
        ("a.tar", None, "a.tar", ""),
    ],
)
def test_compressed_tar_becomes_a_tar(
    tmp_path: Path, name: str, to: str | None, place: str, ending: str
) -> None:
    made(tmp_path, name)
    (item,) = planned(tmp_path, name, to).items
    assert (item.to, item.unpacked_from) == (place, ending)


def test_checksum_of_a_folder_is_none_of_its_files(tmp_path: Path) -> None:
    made(tmp_path, "in/a", "b")
    for url, expected in (("in", None), ("b", SHA256_OF_1)):
        (item,) = plan(
            Source(url=url, sha256=SHA256_OF_1), folder=tmp_path, patience=PATIENCE
        ).items
        assert item.sha256 == expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a/x", None), ("b/x", None)),
        (("a", None), ("b", None)),
        (("a/x", "d"), ("b/x", "d/e")),
        (("a/x.tar", None), ("b/x.tar.gz", None)),
    ],
)
def test_two_files_in_one_place_are_refused(
    tmp_path: Path, first: tuple[str, str | None], second: tuple[str, str | None]
) -> None:
    made(tmp_path, "a/x", "b/x", "a/x.tar", "b/x.tar.gz")
    with pytest.raises(HeadraceError, match="would lie in one place") as caught:
        check_places([planned(tmp_path, *first), planned(tmp_path, *second)])
    assert str(tmp_path / "a/x") in str(caught.value.found)
    assert str(tmp_path / "b/x") in str(caught.value.found)


def test_files_side_by_side_are_no_clash(tmp_path: Path) -> None:
    made(tmp_path, "a/x", "a/x.jpg", "a/xy/z")
    check_places([planned(tmp_path, "a"), planned(tmp_path, "a", "x2")])


def test_name_that_leads_out_of_raw_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "a/x")
    (item,) = planned(tmp_path, "a").items
    bad = replace(item.file, relative="../x")
    with pytest.raises(HeadraceError, match="leads out of raw/"):
        planning._item(Source(url="a"), bad)


def test_source_that_changed_is_named(tmp_path: Path) -> None:
    made(tmp_path, "a/x", "a/y")
    before = planned(tmp_path, "a")
    check_same(before, planned(tmp_path, "a"))
    (tmp_path / "a/y").write_bytes(b"22")
    with pytest.raises(HeadraceError, match="changed while it was read") as caught:
        check_same(before, planned(tmp_path, "a"))
    assert caught.value.where == str(tmp_path / "a/y")
    made(tmp_path, "a/b")
    with pytest.raises(HeadraceError, match="changed while it was read") as caught:
        check_same(before, planned(tmp_path, "a"))
    assert caught.value.where == str(tmp_path / "a/b")


def watched(folder: Path, url: str, sha256: str | None = None) -> None:
    check_watched(Source(url=url, sha256=sha256), "card:1", folder / "source", folder)


def test_local_source_must_be_watched_or_pinned(tmp_path: Path) -> None:
    made(tmp_path, "source/in/x", "outside/x", "x")
    watched(tmp_path, "source")
    watched(tmp_path, "source/in")
    watched(tmp_path, f"file://{tmp_path}/source/in/x")
    watched(tmp_path, "x", SHA256_OF_1)
    watched(tmp_path, "s3://bucket/x")
    for url in ("outside", "source/../outside", str(tmp_path / "outside"), "x"):
        with pytest.raises(HeadraceError, match="DVC does not see this local source"):
            watched(tmp_path, url)


def test_link_to_a_folder_elsewhere_is_refused_since_dvc_does_not_follow_it(
    tmp_path: Path,
) -> None:
    made(tmp_path, "source/in/x", "outside/x")
    (tmp_path / "source" / "x").symlink_to(tmp_path / "outside" / "x")  # A file: DVC reads it.
    (tmp_path / "source" / "again").symlink_to("in")
    watched(tmp_path, "source")
    link = tmp_path / "source" / "in" / "far"
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(HeadraceError, match="DVC does not follow this link") as caught:
        watched(tmp_path, "source")
    assert caught.value.where == str(link)
    watched(tmp_path, "source", SHA256_OF_1)


def test_source_that_is_a_link_as_a_whole_is_watched(tmp_path: Path) -> None:
    made(tmp_path, "outside/in/x")
    (tmp_path / "source").symlink_to("outside")
    watched(tmp_path, "source")


def test_unwatched_file_is_told_with_the_line_to_paste(tmp_path: Path) -> None:
    made(tmp_path, "x", "source/y")
    with pytest.raises(HeadraceError) as caught:
        watched(tmp_path, "x")
    assert f"sha256: {SHA256_OF_1}" in str(caught.value.fix)


def test_link_named_source_is_watched_through(tmp_path: Path) -> None:
    made(tmp_path, "elsewhere/cat/1.jpg")
    (tmp_path / "source").symlink_to(tmp_path / "elsewhere")
    watched(tmp_path, "source")
    watched(tmp_path, "source/cat")
    assert places(tmp_path, "source") == ["cat/1.jpg"]
