"""Rows of Parquet files, as Hugging Face writes them: each a sample, or a row with a reason."""

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.card import ParquetImages
from pipelines.core.errors import HeadraceError
from pipelines.core.samples import raw
from pipelines.core.samples.listing import Listing
from pipelines.core.samples.parquet import in_parquet


def write(
    path: Path,
    labels: Sequence[Any],
    paths: Sequence[str | None] | None = None,
    features: Any = None,
    **options: Any,
) -> None:
    images = [
        {"bytes": f"{path.name} {number}".encode(), "path": name}
        for number, name in enumerate(paths or [None] * len(labels))
    ]
    table = pa.table({"image": images, "label": labels})
    if features is not None:
        told = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": told})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def find(folder: Path, labels: list[str] | None = None, **keys: Any) -> Listing:
    named = {"image_column": "image", "label_column": "label", **keys}
    return in_parquet(
        raw.list_files(folder), ParquetImages(layout="parquet", **named), labels, folder
    )


def kept(listing: Listing) -> dict[str, tuple[str, str]]:
    return {
        f"{sample.file.container}/{sample.file.member}": (sample.label, sample.split)
        for sample in listing.samples
    }


def lost(listing: Listing) -> dict[str, str]:
    return {dropped.path: dropped.reason.value for dropped in listing.dropped}


def test_numbers_are_classes_that_the_schema_names_and_the_file_name_gives_the_split(
    tmp_path: Path,
) -> None:
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    write(tmp_path / "data/train-00000-of-00001.parquet", [1, 0, -1], features=features)
    write(tmp_path / "data/test-00000-of-00001.parquet", [1], features=features)
    listing = find(tmp_path)
    assert kept(listing) == {
        "data/train-00000-of-00001.parquet/image/0": ("dog", "train"),
        "data/train-00000-of-00001.parquet/image/1": ("cat", "train"),
        "data/test-00000-of-00001.parquet/image/0": ("dog", "test"),
    }
    assert lost(listing) == {"data/train-00000-of-00001.parquet/image/2": "no_label"}


def test_listed_cells_are_those_that_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["cat", "dog"], ["1.png", "2.png"])
    samples = find(tmp_path).samples
    assert [(sample.key, sample.label) for sample in samples] == [("1", "cat"), ("2", "dog")]
    data = [raw.read(tmp_path, one.file.container, one.file.member, 99) for one in samples]
    assert data == [b"a.parquet 0", b"a.parquet 1"]


def test_label_may_lie_in_structs_and_be_a_class_there(tmp_path: Path) -> None:
    features = {"meta": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}
    table = pa.table({"image": [b"1", b"2"], "meta": [{"label": 1}, {"label": 0}]})
    told = json.dumps({"info": {"features": features}})
    pq.write_table(table.replace_schema_metadata({"huggingface": told}), tmp_path / "a.parquet")
    listing = find(tmp_path, label_column="meta.label")
    assert [sample.label for sample in listing.samples] == ["dog", "cat"]


def test_number_means_the_cards_list_where_the_card_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 5])
    listing = find(tmp_path, ["cat", "dog"], integer_labels=True)
    assert kept(listing) == {"a.parquet/image/0": ("dog", "")}
    assert lost(listing) == {"a.parquet/image/1": "unknown_label"}


def test_class_that_the_card_does_not_list_is_a_counted_row(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["cat", "bird"])
    assert lost(find(tmp_path, ["cat", "dog"])) == {"a.parquet/image/1": "unknown_label"}


@pytest.mark.parametrize("labels", [[1.5, 2.0], [["cat"], ["dog"]], ["c\nat", "\x00"]])
def test_label_that_is_no_name_is_a_malformed_row(tmp_path: Path, labels: list[Any]) -> None:
    write(tmp_path / "a.parquet", labels)
    assert set(lost(find(tmp_path)).values()) == {"malformed_row"}


def test_rows_of_one_path_and_of_unsafe_paths_get_names_of_their_own(tmp_path: Path) -> None:
    paths = ["same.png", "same.png", "../out.png", None, "a/000004.image", "own.png"]
    write(tmp_path / "a.parquet", ["cat"] * 6, paths)
    write(tmp_path / "b.parquet", ["cat"] * 6, paths)
    samples = find(tmp_path).samples
    assert len({sample.key for sample in samples}) == 12
    assert not any(".." in sample.file.path for sample in samples)


def test_ten_thousand_images_of_one_basename_have_keys_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["cat"] * 10_000, ["image.png"] * 10_000)
    assert len({sample.key for sample in find(tmp_path).samples}) == 10_000


def test_damaged_labels_cost_their_row_group_and_each_row_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    labels = ["cat"] * 4 + ["some-dog"] * 4
    options: dict[str, Any] = {
        "row_group_size": 4,
        "compression": "none",
        "write_page_checksum": True,
    }
    write(path, labels, use_dictionary=False, write_statistics=False, **options)
    path.write_bytes(path.read_bytes().replace(b"some-dog", b"some-hog", 1))
    listing = find(tmp_path)
    assert [sample.label for sample in listing.samples] == ["cat"] * 4
    assert lost(listing) == {f"a.parquet/image/{row}": "unreadable" for row in range(4, 8)}


def test_files_that_cannot_be_opened_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", ["cat"])
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[:-100])
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("in.parquet", data)
    (tmp_path / "README.md").write_text("hello")
    listing = find(tmp_path)
    assert kept(listing) == {"a.parquet/image/0": ("cat", "")}
    assert lost(listing) == {
        "cut.parquet": "unreadable",
        "z.zip/in.parquet": "not_listed",
        "README.md": "not_listed",
    }


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"image_column": "imag"}, "Did you mean 'image'?"),
        ({"label_column": "label.name"}, "no column 'label.name'"),
        ({"image_column": "label"}, "holds no bytes of images"),
    ],
)
def test_card_that_names_other_columns_is_an_error(
    tmp_path: Path, keys: dict[str, Any], told: str
) -> None:
    write(tmp_path / "a.parquet", ["cat"])
    with pytest.raises(HeadraceError, match=told.replace("?", r"\?")):
        find(tmp_path, **keys)


def test_card_that_speaks_of_parquet_where_there_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "1.jpg").write_bytes(b"1")
    with pytest.raises(HeadraceError, match="there is none"):
        find(tmp_path)
