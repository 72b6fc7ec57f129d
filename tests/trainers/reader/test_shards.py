import resource
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pipelines.core.errors import HeadraceError
from tests.decoded import draw, write_decoded
from trainers.reader.index import Index, mend_command, open_index
from trainers.reader.shards import Shards

SHAPE = (5, 7, 3)
ROW_BYTES = 5 * 7 * 3


@pytest.fixture
def index(tmp_path: Path) -> Index:
    write_decoded(tmp_path, splits={"train": [3, 1, 0, 4]}, shape=SHAPE, seed=5)
    return open_index(tmp_path)


@pytest.fixture
def limit_of_open_files() -> Iterator[Callable[[int], None]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def read(shards: Shards, *ids: int) -> tuple[list[bytes], list[int]]:
    images = np.empty((len(ids), ROW_BYTES), np.uint8)
    labels = np.empty(len(ids), np.int64)
    shards.read(np.array(ids), images, labels)
    return [image.tobytes() for image in images], labels.tolist()


def num_mapped(folder: Path) -> int:
    """Shards that this process has mapped at the moment."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if str(folder) in line})


def flip(path: Path, content: bytes, offset: int = 0) -> None:
    """Flip one bit of the file, `offset` bytes after the one place where `content` stands."""
    data = bytearray(path.read_bytes())
    assert data.count(content) == 1
    data[data.index(content) + offset] ^= 0x10
    path.write_bytes(data)


def test_ids_number_the_rows_of_all_shards_in_storage_order(index: Index) -> None:
    expected = [draw(rows, SHAPE, 10, [5, number]) for number, rows in enumerate([3, 1, 4])]
    images = [image.tobytes() for part, _ in expected for image in part]
    labels = [int(label) for _, part in expected for label in part]
    assert read(Shards(index, "train", 1), *range(8)) == (images, labels)


def test_keys_come_in_the_order_of_the_ids_asked_for(index: Index) -> None:
    keys = Shards(index, "train", 1).keys(np.array([7, 0, 3]))
    assert keys == ["train/00003/000003", "train/00000/000000", "train/00001/000000"]


def test_a_flipped_bit_names_file_row_key_both_checksums_and_the_command(index: Index) -> None:
    shard = index.split("train").path(2)
    image = draw(4, SHAPE, 10, [5, 2])[0][1].tobytes()
    flip(shard, image, offset=50)
    shards = Shards(index, "train", 1)
    assert read(shards, 0, 1, 2, 3, 4, 6, 7)
    with pytest.raises(HeadraceError, match="does not match its checksum") as caught:
        read(shards, 0, 5)
    error = caught.value
    assert error.where == f"{shard}:row 1, key 'train/00003/000001'"
    assert error.expected != error.found
    assert str(error.expected).startswith("CRC-32C ")
    assert error.fix == mend_command(shard)


def test_no_flipped_bit_anywhere_in_a_shard_crashes_or_changes_a_pixel(tmp_path: Path) -> None:
    write_decoded(tmp_path, splits={"train": [3]}, shape=(2, 2, 1))
    index = open_index(tmp_path)
    path = index.split("train").path(0)
    sound = path.read_bytes()
    expected = draw(3, (2, 2, 1), 10, [0, 0])[0].tobytes()
    found = Counter[str]()
    for bit in range(0, 8 * len(sound), 41):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        images = np.empty((3, 4), np.uint8)
        try:
            Shards(index, "train", 1).read(np.arange(3), images, np.empty(3, np.int64))
        except HeadraceError as error:
            found[error.what] += 1
        else:
            assert images.tobytes() == expected
    assert len(found) == 2  # the shard itself, or a sample of it


def test_shards_are_mapped_when_needed_and_unmapped_on_close(index: Index) -> None:
    folder = index.path.parent
    shards = Shards(index, "train", 1)
    assert num_mapped(folder) == 0
    read(shards, 0, 3)
    assert num_mapped(folder) == 2
    shards.close()
    assert num_mapped(folder) == 0


def test_no_more_shards_stay_open_than_allowed(tmp_path: Path) -> None:
    write_decoded(tmp_path, splits={"train": [1] * 12}, shape=SHAPE)
    shards = Shards(open_index(tmp_path), "train", 1)
    shards.max_open = 5
    whole = read(shards, *range(12))
    assert num_mapped(tmp_path) == 5
    assert read(shards, *range(12)) == whole


def test_what_a_copy_needs_stays_mapped_though_others_open_more(tmp_path: Path) -> None:
    write_decoded(tmp_path, splits={"train": [1] * 12}, shape=SHAPE)
    shards = Shards(open_index(tmp_path), "train", 1)
    shards.max_open = 2
    located = shards.locate(np.array([0]))
    read(shards, *range(1, 12))
    assert num_mapped(tmp_path) == 3
    del located
    assert num_mapped(tmp_path) == 2


def test_a_window_of_more_shards_than_files_may_be_open_is_refused(
    tmp_path: Path, limit_of_open_files: Callable[[int], None]
) -> None:
    write_decoded(tmp_path, splits={"train": [1] * 70}, shape=SHAPE)
    index = open_index(tmp_path)
    limit_of_open_files(256)
    Shards(index, "train", 64)
    with pytest.raises(HeadraceError, match="More shards are read at a time") as caught:
        Shards(index, "train", 65)
    assert "64" in str(caught.value.expected)
