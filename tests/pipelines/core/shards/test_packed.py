"""Images are taken out of tars by the index, and never taken for whole when they are not."""

from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.shards import packed
from pipelines.core.shards.tars import TarShard

ROW: dict[str, Any] = {"key": "a", "length": 5, "crc32c": google_crc32c.value(b"image")}


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    path = tmp_path / "train-00000.tar"
    with TarShard(path) as shard:
        ROW["offset"] = shard.add("a", {"jpg": b"image", "cls": b"0"})["jpg"].offset
    return path


def test_an_image_is_read_by_its_row(tar: Path) -> None:
    with packed.opened(tar) as file:
        assert packed.read(file, tar, ROW) == b"image"


def test_other_bytes_are_refused(tar: Path) -> None:
    with packed.opened(tar) as file, pytest.raises(HeadraceError, match="damaged") as caught:
        packed.read(file, tar, {**ROW, "offset": ROW["offset"] + 1})
    assert caught.value.where == f"{tar}:a"


def test_a_tar_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "train-00001.tar"
    with pytest.raises(HeadraceError, match="not there") as caught:
        packed.opened(gone)
    assert str(gone) in str(caught.value.fix)
