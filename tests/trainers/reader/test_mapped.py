from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.shards.decoded import write_shard
from tests.decoded import draw, write_decoded
from trainers.reader.index import Index, mend_command, open_index
from trainers.reader.mapped import open_shard

SHAPE = (5, 7, 3)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    write_decoded(tmp_path, splits={"train": [3, 1, 0, 4]}, shape=SHAPE, seed=5)
    return open_index(tmp_path)


def flip(path: Path, content: bytes, offset: int) -> None:
    """Flip one bit of the file, `offset` bytes after the one place where `content` stands."""
    data = bytearray(path.read_bytes())
    assert data.count(content) == 1
    data[data.index(content) + offset] ^= 0x10
    path.write_bytes(data)


def test_a_shard_is_what_was_drawn(index: Index) -> None:
    shard = open_shard(index, index.split("train"), 2, None)
    images, labels = draw(4, SHAPE, 10, [5, 2])
    assert shard.images.tobytes() == images.tobytes()
    assert shard.labels.tolist() == labels.tolist()
    assert not shard.verified.any()


def test_a_shard_of_another_length_is_refused_before_it_is_mapped(index: Index) -> None:
    path = index.split("train").path(0)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(HeadraceError, match="damaged") as caught:
        open_shard(index, index.split("train"), 0, None)
    assert caught.value.where == str(path)
    assert "bytes" in str(caught.value.expected)


def test_a_missing_shard_is_named(index: Index) -> None:
    path = index.split("train").path(0)
    path.unlink()
    with pytest.raises(HeadraceError, match="missing") as caught:
        open_shard(index, index.split("train"), 0, None)
    assert caught.value.where == str(path)


def overwrite_all(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def overwrite_footer(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-60:-10] = bytes(50)
    path.write_bytes(data)


def swap_shape(path: Path) -> None:
    keys = [f"train/00000/{row:06d}" for row in range(3)]
    images = np.zeros((3, 7, 5, 3), np.uint8)
    size = path.stat().st_size
    write_shard(path, images, keys, [0, 0, 0])
    assert path.stat().st_size == size


@pytest.mark.parametrize("damage", [overwrite_all, overwrite_footer, swap_shape])
def test_a_shard_of_the_right_length_that_is_no_such_shard_is_refused(
    index: Index, damage: Callable[[Path], None]
) -> None:
    path = index.split("train").path(0)
    damage(path)
    with pytest.raises(HeadraceError, match="damaged") as caught:
        open_shard(index, index.split("train"), 0, None)
    assert caught.value.where == str(path)
    assert caught.value.fix == mend_command(path)


def test_a_label_that_no_class_has_is_found_on_opening(index: Index) -> None:
    path = index.split("train").path(2)
    labels = draw(4, SHAPE, 10, [5, 2])[1].astype(np.int32)
    flip(path, labels.tobytes(), offset=4 * 2)
    with pytest.raises(HeadraceError, match="damaged") as caught:
        open_shard(index, index.split("train"), 2, None)
    assert caught.value.expected == "labels within 0..9"
    assert f"{labels[2] ^ 0x10} at row 2, key 'train/00003/000002'" == caught.value.found
