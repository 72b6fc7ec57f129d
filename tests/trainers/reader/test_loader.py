import dataclasses
import gc
import mmap
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import HeadraceError
from tests.decoded import draw, write_decoded
from trainers.reader.loader import Placement, Reader
from trainers.reader.order import PADDING, Plan, State, evaluation, training
from trainers.reader.shards import Shards
from trainers.reader.substitute import Report, Substitution

SHAPE = (4, 3, 1)
ROWS = {"train": [30, 1, 0, 7, 52], "val": [5], "test": [9, 14]}
PLAN = training(seed=3, batch_size=12, num_logical_workers=3, window_shards=2, tail="wrap")
ALONE = Placement(
    rank=0, world_size=1, num_threads=1, prefetch_batches=1, device=torch.device("cpu")
)


class Read(NamedTuple):
    """A microbatch, kept."""

    epoch: int
    step: int
    worker: int
    ids: tuple[int, ...]
    labels: tuple[int, ...]
    images: bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoded(tmp_path_factory.mktemp("decoded"), splits=ROWS, shape=SHAPE)


def read(
    folder: Path,
    plan: Plan = PLAN,
    split: str = "train",
    state: State | None = None,
    num_epochs: int | None = None,
    on_bad_sample: Report | None = None,
    **placement: Any,
) -> list[Read]:
    place = dataclasses.replace(ALONE, **placement)
    with Reader(folder, split, plan, place, on_bad_sample) as reader:
        return [
            Read(
                batch.epoch,
                batch.step,
                part.logical_worker,
                tuple(part.ids.tolist()),
                tuple(part.labels.tolist()),
                part.images.numpy().tobytes(),
            )
            for batch in reader.batches(state or reader.start(), num_epochs=num_epochs)
            for part in batch.microbatches
        ]


@given(
    world_size=st.integers(1, 3),
    num_threads=st.integers(1, 4),
    prefetch_batches=st.integers(1, 5),
)
@settings(max_examples=25)
def test_what_is_read_depends_on_neither_ranks_threads_nor_prefetch(
    folder: Path, world_size: int, num_threads: int, prefetch_batches: int
) -> None:
    ranks = [
        read(
            folder,
            num_epochs=2,
            rank=rank,
            world_size=world_size,
            num_threads=num_threads,
            prefetch_batches=prefetch_batches,
        )
        for rank in range(world_size)
    ]
    assert sorted(part for rank in ranks for part in rank) == read(folder, num_epochs=2)


@given(
    rows=st.lists(st.sampled_from([0, 1, 2, 9, 33]), min_size=1, max_size=6).filter(any),
    world_size=st.integers(1, 4),
    size=st.integers(1, 5),
)
@settings(max_examples=25)
def test_evaluation_reads_every_sample_once_on_any_number_of_ranks(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], world_size: int, size: int
) -> None:
    folder = write_decoded(tmp_path_factory.mktemp("d"), splits={"test": rows}, shape=SHAPE)
    plan = evaluation(batch_size=4 * size, num_logical_workers=4)
    ranks = [
        read(folder, plan, "test", rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    ids = [sample for rank in ranks for part in rank for sample in part.ids]
    assert sorted(sample for sample in ids if sample != PADDING) == list(range(sum(rows)))
    assert len({len({part.step for part in rank}) for rank in ranks}) == 1


@given(epoch=st.integers(0, 2), step=st.integers(0, 7))
@settings(max_examples=15)
def test_continuing_from_a_state_equals_having_read_on(folder: Path, epoch: int, step: int) -> None:
    with Reader(folder, "train", PLAN, ALONE) as reader:
        assert reader.num_steps_per_epoch == 8
        state = dataclasses.replace(reader.start(), epoch=epoch, step=step)
    whole = read(folder, num_epochs=3)
    rest = [part for part in whole if (part.epoch, part.step) >= (epoch, step)]
    assert read(folder, state=state, num_epochs=3) == rest


def test_a_sample_id_stands_for_the_same_image_and_label_wherever_it_comes(folder: Path) -> None:
    numbers = [2, 3, 4, 5]  # Shards are numbered over all splits in name order: two of test first.
    drawn = [
        draw(rows, SHAPE, 10, [0, number])
        for rows, number in zip([30, 1, 7, 52], numbers, strict=True)
    ]
    images = np.concatenate([part for part, _ in drawn])
    labels = np.concatenate([part for _, part in drawn])
    for part in read(folder, num_epochs=2):
        assert list(part.labels) == labels[list(part.ids)].tolist()
        assert part.images == images[list(part.ids)].tobytes()


def test_padding_is_masked_zero_and_without_a_label(folder: Path) -> None:
    plan = evaluation(batch_size=10, num_logical_workers=2)
    with Reader(folder, "test", plan, ALONE) as reader:
        for batch in reader.batches(reader.start()):
            for part in batch.microbatches:
                assert torch.equal(part.mask, part.ids != PADDING)
                assert not part.images[~part.mask].any()
                assert (part.labels[~part.mask] == -100).all()
                assert (part.labels[part.mask] >= 0).all()


def test_the_state_after_a_batch_leads_to_the_next_also_across_epochs(folder: Path) -> None:
    with Reader(folder, "train", PLAN, ALONE) as reader:
        state = reader.start()
        for batch in reader.batches(state, num_epochs=2):
            assert (state.epoch, state.step) == (batch.epoch, batch.step)
            state = reader.state_after(batch)
        assert state == State(reader.version, 3, 2, 0)


def test_keys_belong_to_the_ids(folder: Path) -> None:
    with Reader(folder, "train", PLAN, ALONE) as reader:
        keys = reader.keys(torch.tensor([0, 30, 38]))
    assert keys == ["train/00000/000000", "train/00001/000000", "train/00004/000000"]


def test_single_images_are_those_of_their_ids(folder: Path) -> None:
    ids = [38, 0, 30, 29, 89]  # on both sides of each border of shards
    drawn = [
        draw(rows, SHAPE, 10, [0, 2 + number])[0] for number, rows in enumerate([30, 1, 7, 52])
    ]
    with Reader(folder, "train", PLAN, ALONE) as reader:
        images = reader.images(np.array(ids))
    assert np.array_equal(images, np.concatenate(drawn)[ids])


def test_starting_again_ends_the_earlier_iteration(folder: Path) -> None:
    with Reader(folder, "train", PLAN, ALONE) as reader:
        first = reader.batches(reader.start())
        ids = next(first).microbatches[0].ids.clone()
        second = reader.batches(reader.start())
        assert torch.equal(next(second).microbatches[0].ids, ids)
        with pytest.raises(RuntimeError, match="was ended"):
            next(first)


def test_a_flipped_bit_surfaces_where_the_batch_is_asked_for(tmp_path: Path) -> None:
    write_decoded(tmp_path, splits={"train": [20, 20]}, shape=SHAPE)
    shard = tmp_path / "train-00001.arrow"
    content = bytearray(shard.read_bytes())
    image = draw(20, SHAPE, 10, [0, 1])[0][13].tobytes()
    content[content.index(image)] ^= 1
    shard.write_bytes(content)
    with pytest.raises(HeadraceError) as caught:
        read(tmp_path)
    assert caught.value.where == f"{shard}:row 13, key 'train/00001/000013'"


def damage(shard: Path, rows: list[int]) -> None:
    """Flip a bit of some images of the second shard, which has 20."""
    content = bytearray(shard.read_bytes())
    for row in rows:
        content[content.index(draw(20, SHAPE, 10, [0, 1])[0][row].tobytes())] ^= 1
    shard.write_bytes(content)


def test_a_substitute_changes_no_step_no_order_and_no_other_sample(tmp_path: Path) -> None:
    write_decoded(tmp_path, splits={"train": [20, 20, 9]}, shape=SHAPE)
    sound = read(tmp_path, num_epochs=2)
    damage(tmp_path / "train-00001.arrow", [13, 4])
    images = np.concatenate([draw(n, SHAPE, 10, [0, i])[0] for i, n in enumerate([20, 20, 9])])
    labels = np.concatenate([draw(n, SHAPE, 10, [0, i])[1] for i, n in enumerate([20, 20, 9])])
    for num_threads in (1, 3):
        told: list[Substitution] = []
        found = read(tmp_path, num_epochs=2, on_bad_sample=told.append, num_threads=num_threads)
        others = {one.sample: one.substitute for one in told}
        assert sorted(others) == [24, 33]
        assert len(told) == 2  # Once each, however many epochs.
        assert [one.key for one in sorted(told)] == ["train/00001/000004", "train/00001/000013"]
        assert max(told).where == f"{tmp_path}/train-00001.arrow:row 13, key '{max(told).key}'"
        assert [part[:4] for part in found] == [part[:4] for part in sound]
        for part in found:
            used = [others.get(sample, sample) for sample in part.ids]
            assert part.images == images[used].tobytes()
            assert list(part.labels) == labels[used].tolist()


def test_where_nothing_sound_is_left_damage_is_an_error(tmp_path: Path) -> None:
    write_decoded(tmp_path, splits={"train": [0, 20]}, shape=SHAPE)
    shard = tmp_path / "train-00001.arrow"
    content = bytearray(shard.read_bytes())
    for image in draw(20, SHAPE, 10, [0, 0])[0]:
        content[content.index(image.tobytes())] ^= 1
    shard.write_bytes(content)
    told: list[Substitution] = []
    with pytest.raises(HeadraceError, match="does not match its checksum"):
        read(tmp_path, on_bad_sample=told.append)
    assert told == []


@pytest.mark.timeout(60)
def test_a_disk_that_hangs_is_told_and_holds_up_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(Shards, "read", lambda *_: hangs.wait(60))
    place = dataclasses.replace(ALONE, stall_timeout_s=0.1)
    with Reader(folder, "train", PLAN, place) as reader:
        with pytest.raises(HeadraceError, match=r"has not come for 0\.1 s") as caught:
            next(reader.batches(reader.start()))
        with pytest.raises(RuntimeError, match="hangs"):
            reader.batches(reader.start())
    assert caught.value.where == "split train, epoch 0, step 0"
    assert str(caught.value.found).startswith("waiting for train-0000")
    assert str(caught.value.found).endswith(f" in {folder}")
    hangs.set()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"version": "0" * 64}, "another version of the dataset"),
        ({"seed": 4}, "another plan"),
        ({"step": 8}, "another plan"),
    ],
)
def test_a_state_of_other_data_or_another_plan_is_refused(
    folder: Path, changes: dict[str, Any], what: str
) -> None:
    with Reader(folder, "train", PLAN, ALONE) as reader:
        state = dataclasses.replace(reader.start(), **changes)
        with pytest.raises(HeadraceError, match=what):
            reader.batches(state)


def test_a_split_smaller_than_a_batch_that_may_not_be_filled_up_is_refused(folder: Path) -> None:
    plan = dataclasses.replace(PLAN, tail="drop")
    with pytest.raises(HeadraceError, match="fewer samples than one batch"):
        Reader(folder, "val", plan, ALONE)


def test_closing_leaves_no_thread_and_no_mapping(folder: Path) -> None:
    before = threading.active_count()
    reader = Reader(folder, "train", PLAN, dataclasses.replace(ALONE, num_threads=3))
    batches = reader.batches(reader.start())
    next(batches)
    assert threading.active_count() > before
    reader.close()
    del reader, batches
    gc.collect()
    assert threading.active_count() == before
    assert str(folder) not in Path("/proc/self/maps").read_text()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_two_hundred_epochs_take_no_more_memory_and_files_than_twenty(tmp_path: Path) -> None:
    write_decoded(tmp_path, splits={"train": [40] * 4}, shape=(32, 32, 3))
    with Reader(tmp_path, "train", PLAN, ALONE) as reader:
        batches = reader.batches(reader.start(), num_epochs=200)
        for _ in range(20 * reader.num_steps_per_epoch):
            next(batches)
        num_files = len(list(Path("/proc/self/fd").iterdir()))
        before = resident_bytes()
        assert sum(1 for _ in batches) == 180 * reader.num_steps_per_epoch
        assert len(list(Path("/proc/self/fd").iterdir())) == num_files
        assert resident_bytes() - before < 4 << 20


def test_a_batch_waits_in_the_buffer_of_one_before_it(folder: Path) -> None:
    with Reader(folder, "train", PLAN, dataclasses.replace(ALONE, prefetch_batches=3)) as reader:
        batches = reader.batches(reader.start(), num_epochs=5)
        buffers = {batch.microbatches[0].images.data_ptr() for batch in batches}
    assert len(buffers) == 4
