import os
from pathlib import Path

import numpy as np
import pytest

from tests.decoded import write_decoded
from trainers.reader.index import SplitIndex, open_index
from trainers.reader.order import Order, training
from trainers.reader.readahead import Readahead

ROWS = [10] * 8
PLAN = training(seed=3, batch_size=5, num_logical_workers=1, window_shards=2, tail="drop")


@pytest.fixture
def split(tmp_path: Path) -> SplitIndex:
    folder = write_decoded(tmp_path, splits={"train": ROWS}, shape=(2, 2, 1))
    return open_index(folder).split("train")


def shards_of(order: Order, epoch: int, step: int) -> set[int]:
    """The shards of the window that a batch lies in, by drawing all of the window."""
    steps_of_window = 4
    first = step // steps_of_window * steps_of_window
    ids = order.draw_epoch(epoch).batches(first, steps_of_window)
    return set((ids.reshape(-1) // 10).tolist())


def test_each_shard_is_asked_for_a_window_before_it_is_read(
    split: SplitIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def note(descriptor: int, offset: int, num_bytes: int, advice: int) -> None:
        assert (offset, num_bytes, advice) == (0, 0, os.POSIX_FADV_WILLNEED)
        asked.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "posix_fadvise", note)
    order = Order("v", "train", np.array(ROWS), PLAN)
    for num_steps in (1, 4, 5, 13, 16, 17):
        asked.clear()
        readahead = Readahead(split, order)
        readahead.start(2)
        for count in range(num_steps):
            readahead.move_on(*divmod(count, order.num_steps))
        readahead.close()
        windows = [shards_of(order, *divmod(at, 16)) for at in range(0, num_steps + 4, 4)]
        windows = windows[: (num_steps - 1) // 4 + 2]
        expected = [split.path(number).name for window in windows for number in sorted(window)]
        assert set(asked) == set(expected)
        assert len(asked) <= len(expected)  # Fewer: one that is there still is not asked for again.


def test_a_missing_shard_is_left_to_whoever_reads_it(split: SplitIndex) -> None:
    for path in split.shards:
        path.unlink()
    readahead = Readahead(split, Order("v", "train", np.array(ROWS), PLAN))
    readahead.start(1)
    readahead.move_on(0, 0)
    readahead.close()
