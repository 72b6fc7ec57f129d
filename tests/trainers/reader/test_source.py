from pathlib import Path

import numpy as np
import pytest

from pipelines.core.errors import HeadraceError
from tests.decoded import draw, write_decoded
from trainers.reader.ahead import Position
from trainers.reader.order import training
from trainers.reader.source import Source

SHAPE = (3, 2, 1)
ROWS = [30, 1, 0, 7, 52]
PLAN = training(seed=3, batch_size=12, num_logical_workers=3, window_shards=2, tail="wrap")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoded(tmp_path_factory.mktemp("decoded"), splits={"train": ROWS}, shape=SHAPE)


def test_the_ids_of_a_batch_are_those_of_the_order_for_the_workers_asked_for(folder: Path) -> None:
    source = Source(folder, "train", PLAN, range(1, 3), 2)
    for epoch, step in ((1, 3), (0, 0), (0, source.order.num_steps - 1)):
        expected = source.order.draw_epoch(epoch).batches(step, 1)[0, 1:]
        assert source.ids_at(Position(epoch, step)).tolist() == expected.reshape(-1).tolist()
    source.close()


def test_single_images_are_those_of_their_ids(folder: Path) -> None:
    source = Source(folder, "train", PLAN, range(3), 2)
    drawn = np.concatenate(
        [draw(rows, SHAPE, 10, [0, n])[0] for n, rows in enumerate(filter(None, ROWS))]
    )
    ids = np.array([89, 0, 30, 31, 38])
    assert np.array_equal(source.images(ids), drawn[ids])
    source.close()


def test_an_error_can_name_the_shards_of_a_batch(folder: Path) -> None:
    source = Source(folder, "train", PLAN, range(3), 2)
    told = source.describe(Position(0, 0))
    assert told.startswith("train-0000")
    assert told.endswith(f" in {folder}")
    source.close()


def test_closing_unmaps_everything(folder: Path) -> None:
    source = Source(folder, "train", PLAN, range(3), 2)
    source.images(np.arange(90))
    assert str(folder) in Path("/proc/self/maps").read_text()
    source.close()
    assert str(folder) not in Path("/proc/self/maps").read_text()


def test_a_split_smaller_than_a_batch_is_refused(folder: Path) -> None:
    plan = training(seed=3, batch_size=91, num_logical_workers=1, window_shards=2, tail="drop")
    with pytest.raises(HeadraceError, match="fewer samples than one batch"):
        Source(folder, "train", plan, range(1), 2)
