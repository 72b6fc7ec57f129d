import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.reader.gather import (
    ALL_SOUND,
    IGNORED_LABEL,
    NOT_MAPPED,
    crc32c_address,
    gather,
)

STREAMED = 3 * 4096 + 2 * 256
"""Bytes of a row that is large and even enough to be written past the caches."""


class Memory:
    """Shards of drawn rows in memory, and the table of where they lie."""

    def __init__(self, sizes: list[int], row_bytes: int) -> None:
        rng = np.random.default_rng(0)
        self.images = [rng.integers(0, 256, (n, row_bytes), dtype=np.uint8) for n in sizes]
        self.labels = [rng.integers(0, 1000, n, dtype=np.int32) for n in sizes]
        self.checksums = [
            np.array([google_crc32c.value(row.tobytes()) for row in part], np.uint32)
            for part in self.images
        ]
        self.verified = [np.zeros(n, np.uint8) for n in sizes]
        self.first_ids = np.cumsum([0, *sizes[:-1]])
        columns = (self.images, self.labels, self.checksums, self.verified)
        self.addresses = np.array(
            [[part.ctypes.data for part in parts] for parts in zip(*columns, strict=True)]
        )

    def gather(self, ids: list[int]) -> tuple[int, npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        # Buffers come full of an earlier batch.
        images = lined_up(len(ids), self.images[0].shape[1])
        labels = np.full(len(ids), 7)
        end = gather(
            np.array(ids, np.int64),
            self.first_ids,
            self.addresses,
            images,
            labels,
            crc32c_address(),
        )
        return end, images, labels


def lined_up(num_rows: int, row_bytes: int, offset: int = 0) -> npt.NDArray[np.uint8]:
    """Rows full of 7 that begin `offset` bytes after a multiple of 64."""
    room = np.full(num_rows * row_bytes + 128, 7, np.uint8)
    begin = -room.ctypes.data % 64 + offset
    return room[begin : begin + num_rows * row_bytes].reshape(num_rows, row_bytes)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    row_bytes=st.integers(1, 100) | st.sampled_from([4095, 4096, 5000, STREAMED, STREAMED + 64]),
    data=st.data(),
)
def test_each_place_gets_its_sample_and_padding_gets_nothing(
    sizes: list[int], row_bytes: int, data: st.DataObject
) -> None:
    memory = Memory(sizes, row_bytes)
    ids = data.draw(st.lists(st.integers(-1, sum(sizes) - 1), max_size=20))
    end, images, labels = memory.gather(ids)
    all_images, all_labels = np.concatenate(memory.images), np.concatenate(memory.labels)
    assert end == ALL_SOUND
    for sample, image, label in zip(ids, images, labels, strict=True):
        if sample < 0:
            assert not image.any()
            assert label == IGNORED_LABEL
        else:
            assert np.array_equal(image, all_images[sample])
            assert label == all_labels[sample]


def test_nothing_is_written_beyond_the_rows_however_they_lie_in_memory() -> None:
    memory = Memory([3], STREAMED)
    for offset in (0, 1, 32):
        room = lined_up(4, STREAMED, offset)
        first_ids, addresses = memory.first_ids, memory.addresses
        ids, labels = np.array([2, 0]), np.empty(2, np.int64)
        assert gather(ids, first_ids, addresses, room[1:3], labels, crc32c_address()) == ALL_SOUND
        assert np.array_equal(room[1:3], memory.images[0][ids])
        assert (room[[0, 3]] == 7).all()


def test_a_sample_of_a_shard_that_is_not_mapped_is_told_and_nothing_copied() -> None:
    memory = Memory([3, 2, 4], 10)
    memory.addresses[1] = 0
    end, images, _ = memory.gather([0, 4, 8])
    assert end == NOT_MAPPED
    assert (images == 7).all()
    assert memory.gather([0, -1, 8])[0] == ALL_SOUND


@pytest.mark.parametrize("row_bytes", [100, STREAMED])
@pytest.mark.parametrize("bit", [0, 8 * 50 + 3, 8 * 100 - 1])
def test_one_flipped_bit_is_found_at_its_place(bit: int, row_bytes: int) -> None:
    memory = Memory([3, 4], row_bytes)
    memory.images[1][2, bit // 8] ^= np.uint8(1 << bit % 8)
    assert memory.gather([0, 6, 5, 1])[0] == 2


def test_a_row_is_checked_when_first_touched_and_then_trusted() -> None:
    memory = Memory([4], 10)
    assert memory.gather([1, 2])[0] == ALL_SOUND
    assert memory.verified[0].tolist() == [0, 1, 1, 0]
    memory.images[0][1] ^= 1
    assert memory.gather([1])[0] == ALL_SOUND


def test_a_damaged_row_is_never_taken_for_verified() -> None:
    memory = Memory([4], 10)
    memory.images[0][1] ^= 1
    assert [memory.gather([1])[0] for _ in range(2)] == [0, 0]


def test_the_checksum_is_crc32c_as_published() -> None:
    # "123456789" is the check value of every catalogue of CRCs; RFC 3720, B.4 has the zeros.
    memory = Memory([1, 1], 9)
    memory.images[0][0] = np.frombuffer(b"123456789", np.uint8)
    memory.checksums[0][0] = 0xE3069283
    assert memory.gather([0])[0] == ALL_SOUND
    memory = Memory([1], 32)
    memory.images[0][:] = 0
    memory.checksums[0][0] = 0x8A9136AA
    assert memory.gather([0])[0] == ALL_SOUND
