"""Tars of WebDataset: members of one name are a sample, and none is lost."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from pipelines.core.card import WebDataset
from pipelines.core.errors import HeadraceError
from pipelines.core.samples import raw
from pipelines.core.samples.listing import Listing
from pipelines.core.samples.webdataset import in_tars


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def find(
    folder: Path,
    ending: str = "cls",
    labels: list[str] | None = None,
    field: str | None = None,
    *,
    integer_labels: bool = False,
) -> Listing:
    layout = WebDataset(
        layout="webdataset",
        label_ending=ending,  # type: ignore[arg-type]
        label_field=field,
        integer_labels=integer_labels,
    )

    def read(file: raw.RawFile, max_bytes: int) -> bytes:
        return raw.read(folder, file.container, file.member, max_bytes)

    return in_tars(raw.list_files(folder), layout, labels, read)


def kept(listing: Listing) -> dict[str, tuple[str, str]]:
    return {
        f"{sample.file.container}/{sample.file.member}": (sample.label, sample.split)
        for sample in listing.samples
    }


def lost(listing: Listing) -> dict[str, str]:
    return {dropped.path: dropped.reason.value for dropped in listing.dropped}


@pytest.mark.parametrize(
    ("ending", "field", "data"),
    [
        ("cls", None, b"dog\n"),
        ("txt", None, b"\xef\xbb\xbf dog"),
        ("json", None, b'{"label": "dog"}'),
        ("json", "meta.label", b'{"meta": {"label": "dog"}}'),
    ],
)
def test_label_stands_beside_the_image(
    tmp_path: Path, ending: str, field: str | None, data: bytes
) -> None:
    write_tar(tmp_path / "a.tar", {"x/1.jpg": b"1", f"x/1.{ending}": data, "x/1.other": b""})
    listing = find(tmp_path, ending, field=field)
    assert kept(listing) == {"a.tar/x/1.jpg": ("dog", "")}
    assert not listing.dropped


def test_number_of_a_class_means_its_place_in_the_cards_list(tmp_path: Path) -> None:
    members = {"1.jpg": b"1", "1.cls": b"1", "2.jpg": b"2", "2.cls": b"2"}
    write_tar(tmp_path / "a.tar", members)
    listing = find(tmp_path, labels=["cat", "dog"], integer_labels=True)
    assert kept(listing) == {"a.tar/1.jpg": ("dog", "")}
    assert lost(listing) == {"a.tar/2.jpg": "unknown_label"}


def test_folder_or_name_of_the_tar_gives_the_split_and_tars_may_share_names(
    tmp_path: Path,
) -> None:
    for name in ("pets-train-000.tar", "validation/0.tar", "test_1.tar"):
        write_tar(tmp_path / name, {"1.jpg": name.encode(), "1.cls": b"cat"})
    listing = find(tmp_path)
    assert {place: split for place, (_, split) in kept(listing).items()} == {
        "pets-train-000.tar/1.jpg": "train",
        "validation/0.tar/1.jpg": "val",
        "test_1.tar/1.jpg": "test",
    }
    assert len({sample.key for sample in listing.samples}) == 3


def test_ten_thousand_images_of_one_basename_have_keys_of_their_own(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for number in range(10_000):
        members |= {f"{number}/image.png": b"1", f"{number}/image.cls": b"cat"}
    write_tar(tmp_path / "a.tar", members)
    assert len({sample.key for sample in find(tmp_path).samples}) == 10_000


def test_what_is_no_sample_is_a_row_with_a_reason(tmp_path: Path) -> None:
    members = {
        "two.jpg": b"1",
        "two.png": b"2",
        "two.cls": b"cat",
        "lone.cls": b"cat",
        "unlabelled.jpg": b"3",
        "odd.jpg": b"4",
        "odd.cls": b"\xff\xfe",
        "long.jpg": b"5",
        "long.cls": b"cat\ndog",
        "inner.tar": b"6",
    }
    write_tar(tmp_path / "a.tar", members)
    (tmp_path / "README.md").write_text("hello")
    listing = find(tmp_path)
    assert not listing.samples
    assert lost(listing) == {
        "a.tar/two.jpg": "ambiguous_file",
        "a.tar/two.png": "ambiguous_file",
        "a.tar/lone.cls": "missing_file",
        "a.tar/unlabelled.jpg": "no_label",
        "a.tar/odd.jpg": "malformed_row",
        "a.tar/long.jpg": "malformed_row",
        "a.tar/inner.tar": "unsupported_format",
        "README.md": "not_listed",
    }


@pytest.mark.parametrize("data", ["{", "[1]", json.dumps({"label": [1]}), "{}"])
def test_json_without_a_label_costs_its_sample(tmp_path: Path, data: str) -> None:
    write_tar(tmp_path / "a.tar", {"1.jpg": b"1", "1.json": data.encode()})
    reason = "no_label" if data in ("{}", "[1]") else "malformed_row"
    assert lost(find(tmp_path, "json")) == {"a.tar/1.jpg": reason}


def test_tar_that_is_cut_keeps_what_stands_before_and_tells_of_the_rest(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for number in range(3):
        members |= {f"{number}.cls": b"cat", f"{number}.jpg": b"1" * 2000}
    write_tar(tmp_path / "a.tar", members)
    data = (tmp_path / "a.tar").read_bytes()
    # A label takes 1024 bytes and an image 2560: the cut is inside the second image.
    (tmp_path / "a.tar").write_bytes(data[: 2 * 1024 + 2560 + 1000])
    listing = find(tmp_path)
    assert kept(listing) == {"a.tar/0.jpg": ("cat", "")}
    found = lost(listing)
    assert found["a.tar/1.jpg"] == "truncated"
    assert found["a.tar/1.cls"] == "missing_file"


def test_card_that_speaks_of_tars_where_there_are_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"1")
    with pytest.raises(HeadraceError, match="there is none"):
        find(tmp_path)
