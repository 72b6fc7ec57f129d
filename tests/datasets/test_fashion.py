"""The bundled dataset in git: what the card says about the zip beside it is so."""

import csv
import hashlib
import io
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from ruamel.yaml import YAML

FOLDER = Path("datasets/fashion")


@pytest.fixture(scope="module")
def card() -> Any:
    return YAML(typ="safe").load(FOLDER / "dataset.yaml")


@pytest.fixture(scope="module")
def table() -> list[dict[str, str]]:
    with zipfile.ZipFile(FOLDER / "sample.zip") as archive:
        return list(csv.DictReader(io.StringIO(archive.read("labels.csv").decode())))


def test_zip_is_the_one_that_the_card_describes(card: Any) -> None:
    (source,) = card["sources"]
    data = (FOLDER / source["url"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == source["sha256"]
    assert len(data) == source["num_bytes"]


def test_zip_stays_small_enough_for_git() -> None:
    assert (FOLDER / "sample.zip").stat().st_size < 5_000_000


def test_zip_holds_5000_training_and_1000_test_images(table: list[dict[str, str]]) -> None:
    assert Counter(row["split"] for row in table) == {"train": 5000, "test": 1000}


def test_labels_are_the_ten_of_the_card(card: Any, table: list[dict[str, str]]) -> None:
    assert len(card["labels"]) == 10
    assert {row["label"] for row in table} == set(card["labels"])


def test_table_names_every_image_once(table: list[dict[str, str]]) -> None:
    with zipfile.ZipFile(FOLDER / "sample.zip") as archive:
        assert sorted(archive.namelist()) == sorted([row["path"] for row in table] + ["labels.csv"])


def test_images_are_28_by_28_gray_png(table: list[dict[str, str]]) -> None:
    with zipfile.ZipFile(FOLDER / "sample.zip") as archive:
        for row in table[::500]:
            with Image.open(io.BytesIO(archive.read(row["path"]))) as image:
                image.load()
                assert (image.format, image.mode, image.size) == ("PNG", "L", (28, 28))


def test_zip_can_be_passed_on_alone_with_its_licence() -> None:
    with zipfile.ZipFile(FOLDER / "sample.zip") as archive:
        assert archive.comment == (FOLDER / "LICENSE").read_bytes()
        assert b"Zalando" in archive.comment
