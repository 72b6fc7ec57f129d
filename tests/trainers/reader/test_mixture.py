import dataclasses
import threading
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.errors import HeadraceError
from tests.decoded import draw, write_decoded
from trainers.reader.loader import Placement
from trainers.reader.mixture import Mixture, Part, num_places
from trainers.reader.order import Plan, State, training

SHAPE = (4, 3, 1)
ROWS = ([30, 7, 52], [5], [40, 41])
SIZES = [sum(rows) for rows in ROWS]
WEIGHTS = (3.0, 1.0, 2.0)
PLAN = training(seed=3, batch_size=24, num_logical_workers=2, window_shards=2, tail="drop")
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
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Part]:
    folder = tmp_path_factory.mktemp("mixture")
    return [
        Part(
            write_decoded(folder / str(number), splits={"train": rows}, shape=SHAPE, seed=number),
            weight,
        )
        for number, (rows, weight) in enumerate(zip(ROWS, WEIGHTS, strict=True))
    ]


def read(
    parts: list[Part], state: State | None = None, num_epochs: int = 4, **placement: Any
) -> list[Read]:
    with Mixture(parts, "train", PLAN, dataclasses.replace(ALONE, **placement)) as mixture:
        return [
            Read(
                batch.epoch,
                batch.step,
                part.logical_worker,
                tuple(part.ids.tolist()),
                tuple(part.labels.tolist()),
                part.images.numpy().tobytes(),
            )
            for batch in mixture.batches(state or mixture.start(), num_epochs=num_epochs)
            for part in batch.microbatches
        ]


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=6),
    size=st.integers(6, 200),
    workers=st.integers(1, 5),
)
def test_places_fill_the_batch_and_come_near_the_weights(
    weights: list[float], size: int, workers: int
) -> None:
    plan = dataclasses.replace(PLAN, batch_size=size * workers, num_logical_workers=workers)
    places = num_places(weights, plan)
    assert sum(places) == plan.batch_size
    assert all(count >= workers and count % workers == 0 for count in places)
    wanted = [weight / sum(weights) * size for weight in weights]
    if min(wanted) >= 1:
        assert all(
            abs(count / workers - exact) < 1 for count, exact in zip(places, wanted, strict=True)
        )


def test_every_microbatch_holds_the_same_shares(parts: list[Part]) -> None:
    edges = np.cumsum([0, *SIZES])
    for part in read(parts):
        numbers = np.searchsorted(edges, part.ids, side="right") - 1
        assert Counter(numbers.tolist()) == {0: 6, 1: 2, 2: 4}
    with Mixture(parts, "train", PLAN, ALONE) as mixture:
        assert mixture.shares == (0.5, 1 / 6, 1 / 3)


def test_each_dataset_gives_all_its_samples_before_it_begins_again(parts: list[Part]) -> None:
    ids = np.concatenate([part.ids for part in read(parts)])
    edges = np.cumsum([0, *SIZES])
    for begin, end, places in zip(edges, edges[1:], (12, 4, 8), strict=False):
        own = ids[(ids >= begin) & (ids < end)]
        steps = -(-(end - begin) // places)
        first = own[: steps * places]
        assert set(first.tolist()) == set(range(begin, end))
        assert max(Counter(first.tolist()).values()) <= 2


def test_images_and_labels_are_those_of_the_ids(parts: list[Part]) -> None:
    drawn = [
        draw(rows, SHAPE, 10, [number, shard])
        for number, shards in enumerate(ROWS)
        for shard, rows in enumerate(shards)
    ]
    images = np.concatenate([part for part, _ in drawn])
    labels = np.concatenate([part for _, part in drawn])
    for part in read(parts, num_epochs=2):
        assert part.images == images[list(part.ids)].tobytes()
        assert list(part.labels) == labels[list(part.ids)].tolist()


@given(world_size=st.integers(1, 2), num_threads=st.integers(1, 3), prefetch=st.integers(1, 4))
@settings(max_examples=10)
def test_what_is_read_depends_on_neither_ranks_threads_nor_prefetch(
    parts: list[Part], world_size: int, num_threads: int, prefetch: int
) -> None:
    ranks = [
        read(
            parts,
            rank=rank,
            world_size=world_size,
            num_threads=num_threads,
            prefetch_batches=prefetch,
        )
        for rank in range(world_size)
    ]
    assert sorted(part for rank in ranks for part in rank) == read(parts)


@given(epoch=st.integers(0, 3), step=st.integers(0, 6))
@settings(max_examples=10)
def test_continuing_from_a_state_equals_having_read_on(
    parts: list[Part], epoch: int, step: int
) -> None:
    with Mixture(parts, "train", PLAN, ALONE) as mixture:
        assert mixture.num_steps_per_epoch == 7
        state = dataclasses.replace(mixture.start(), epoch=epoch, step=step)
    rest = [part for part in read(parts) if (part.epoch, part.step) >= (epoch, step)]
    assert read(parts, state) == rest


def test_the_state_after_a_batch_leads_to_the_next(parts: list[Part]) -> None:
    with Mixture(parts, "train", PLAN, ALONE) as mixture:
        state = mixture.start()
        for batch in mixture.batches(state, num_epochs=2):
            assert (state.epoch, state.step) == (batch.epoch, batch.step)
            state = mixture.state_after(batch)
        assert (state.epoch, state.step) == (2, 0)


def test_buckets_give_what_folders_give(
    parts: list[Part], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_FOLDER", str(tmp_path))
    remote = [Part(f"file://{part.source}", part.weight) for part in parts]
    assert read(remote) == read(parts)


def test_keys_name_the_dataset_too(parts: list[Part]) -> None:
    with Mixture(parts, "train", PLAN, ALONE) as mixture:
        keys = mixture.keys(torch.tensor([89, 30, 94]))
    assert keys == [
        (1, "train/00000/000000"),
        (0, "train/00001/000000"),
        (2, "train/00000/000000"),
    ]


@pytest.mark.parametrize(
    ("change", "what"),
    [({"version": "0" * 64}, "another version of the dataset"), ({"seed": 4}, "another plan")],
)
def test_a_state_of_another_mixture_is_refused(
    parts: list[Part], change: dict[str, Any], what: str
) -> None:
    with Mixture(parts, "train", PLAN, ALONE) as mixture:
        state = dataclasses.replace(mixture.start(), **change)
        with pytest.raises(HeadraceError, match=what):
            mixture.batches(state, num_epochs=1)


def test_other_shares_are_another_version(parts: list[Part]) -> None:
    versions = set()
    for weight in (1.0, 5.0):
        changed = [parts[0]._replace(weight=weight), *parts[1:]]
        with Mixture(changed, "train", PLAN, ALONE) as mixture:
            versions.add(mixture.version)
    assert len(versions) == 2


def test_datasets_that_do_not_fit_are_refused_and_leave_no_thread(
    parts: list[Part], tmp_path: Path
) -> None:
    write_decoded(tmp_path, splits={"train": [20]}, shape=(2, 2, 1))
    before = threading.active_count()
    with pytest.raises(HeadraceError, match="cannot be mixed") as caught:
        Mixture([*parts, Part(tmp_path, 1)], "train", PLAN, ALONE)
    assert caught.value.where == str(tmp_path)
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("weights", "plan", "what"),
    [
        ([], PLAN, "must be positive"),
        ([1.0, 0.0], PLAN, "must be positive"),
        ([1.0] * 13, PLAN, "no place for each dataset"),
    ],
)
def test_weights_that_cannot_be_met_are_refused(
    weights: list[float], plan: Plan, what: str
) -> None:
    with pytest.raises(HeadraceError, match=what):
        num_places(weights, plan)
