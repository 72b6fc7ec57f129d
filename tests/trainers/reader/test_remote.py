import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.core.cluster import machine
from pipelines.core.errors import HeadraceError
from tests.decoded import draw, write_decoded
from tests.servers import Proxy, point_at_s3, serve_faulty, serve_s3
from trainers.reader import fetch, remote
from trainers.reader.loader import Placement, Reader
from trainers.reader.order import PADDING, Plan, evaluation, training
from trainers.reader.substitute import Substitution

SHAPE = (8, 8, 3)
ROWS = {"train": [30, 5, 41, 7, 52, 18, 25, 33], "val": [14, 9]}
PLAN = training(seed=3, batch_size=12, num_logical_workers=2, window_shards=2, tail="wrap")
EVALUATION = evaluation(batch_size=12, num_logical_workers=2)
ALONE = Placement(
    rank=0, world_size=1, num_threads=2, prefetch_batches=2, device=torch.device("cpu")
)
QUICK = fetch.Patience(
    piece_bytes=3000,
    deadline_s=1.0,
    max_attempts=4,
    first_pause_s=0.01,
    longest_pause_s=0.05,
    least_hedge_s=0.2,
)
Batches = list[tuple[int, int, bytes, bytes]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoded(tmp_path_factory.mktemp("decoded"), splits=ROWS, shape=SHAPE)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE_FOLDER", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "Patience", lambda: QUICK)
    monkeypatch.setattr(fetch, "Patience", lambda: QUICK)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with serve_s3() as address:
        yield address


@pytest.fixture
def proxy(moto: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with serve_faulty(moto) as proxy:
        point_at_s3(moto, monkeypatch)
        store = fsspec.filesystem("s3")
        if not store.exists("data"):
            store.mkdir("data")
            store.put(f"{folder}/", "data/decoded/", recursive=True)
        point_at_s3(proxy.url, monkeypatch)
        yield proxy


def read(
    source: Path | str,
    plan: Plan = PLAN,
    split: str = "train",
    num_epochs: int = 2,
    placement: Placement = ALONE,
) -> Batches:
    with Reader(source, split, plan, placement) as reader:
        return [
            (batch.epoch, batch.step, part.ids.numpy().tobytes(), part.images.numpy().tobytes())
            for batch in reader.batches(reader.start(), num_epochs=num_epochs)
            for part in batch.microbatches
        ]


def shard_files(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if not path.name.startswith(("lock", "reader-"))]


def used(cache: Path) -> int:
    total = 0
    for path in shard_files(cache):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def held_bytes(url: str, plan: Plan, split: str = "train") -> int:
    """What a reader says that it holds at most."""
    with Reader(url, split, plan, ALONE) as reader:
        assert reader._source.remote is not None
        return reader._source.remote._num_bytes_held()


def test_a_bucket_gives_what_the_folder_gives(folder: Path, proxy: Proxy) -> None:
    assert read("s3://data/decoded") == read(folder)
    assert read("s3://data/decoded", EVALUATION, "val", 1) == read(folder, EVALUATION, "val", 1)


@pytest.mark.parametrize("fault", ["500", "cut", "flip", "stall", "slow"])
def test_faults_cost_time_and_neither_a_byte_nor_a_step(
    folder: Path, proxy: Proxy, fault: str
) -> None:
    proxy.faults = ["", "", fault, "", "", "", fault, "", fault, *[""] * 5, fault]
    proxy.pause_s = 0.05
    assert read("s3://data/decoded") == read(folder)
    assert not proxy.faults


@pytest.mark.parametrize("fault", ["500", "cut", "flip", "stall"])
def test_a_fault_that_stays_ends_in_an_error_that_names_the_shard(
    proxy: Proxy, cache: Path, fault: str
) -> None:
    proxy.faults = [""]  # of the index
    proxy.always = fault
    with pytest.raises(HeadraceError) as caught:
        read("s3://data/decoded")
    assert str(caught.value.where).startswith("s3://data/decoded/train-0000")
    assert "SHA-256" in str(caught.value.found) or "attempt 4 of 4" in str(caught.value.found)
    assert shard_files(cache) == []
    assert not [one for one in threading.enumerate() if one.name.startswith("headrace")]


def test_each_shard_is_fetched_once_a_node_and_kept(proxy: Proxy) -> None:
    placements = [dataclasses.replace(ALONE, rank=rank, world_size=2) for rank in range(2)]
    with ThreadPoolExecutor(2) as ranks:
        parts = list(ranks.map(lambda one: read("s3://data/decoded", placement=one), placements))
    starts = [line.split()[1] for line in proxy.requests if " bytes=0-" in line]
    assert len(starts) == len(set(starts)) == len(ROWS["train"])
    assert sorted(parts[0] + parts[1]) == sorted(read("s3://data/decoded"))
    assert len([line for line in proxy.requests if " bytes=0-" in line]) == len(starts)


def test_the_index_of_an_empty_bucket_is_told(proxy: Proxy) -> None:
    with pytest.raises(HeadraceError, match="no decoded dataset here") as caught:
        read("s3://data/nothing")
    assert caught.value.where == "s3://data/nothing/index.arrow"


@given(
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    window=st.integers(1, 4),
    size=st.sampled_from([2, 6, 20]),
    prefetch=st.integers(1, 3),
    num_threads=st.integers(1, 3),
)
@settings(max_examples=20)
def test_the_smallest_cache_that_is_allowed_neither_stalls_nor_overflows(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[int],
    window: int,
    size: int,
    prefetch: int,
    num_threads: int,
) -> None:
    folder = write_decoded(tmp_path_factory.mktemp("d"), splits={"train": rows}, shape=(4, 4, 1))
    plan = training(
        seed=1, batch_size=size, num_logical_workers=2, window_shards=window, tail="wrap"
    )
    place = dataclasses.replace(ALONE, prefetch_batches=prefetch, num_threads=num_threads)
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE_FOLDER", str(cache))
        with Reader(f"file://{folder}", "train", plan, place) as reader:
            assert reader._source.remote is not None
            cap = reader._source.remote._num_bytes_held()
        for path in shard_files(cache):
            path.unlink()
        patch.setenv("HEADRACE_CACHE_MAX_GIB", repr(cap / (1 << 30)))
        assert read(f"file://{folder}", plan, placement=place) == read(folder, plan)
    assert used(cache) <= cap


def test_a_cache_below_the_working_set_is_refused_at_once_with_the_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = held_bytes(f"file://{folder}", PLAN)
    monkeypatch.setenv("HEADRACE_CACHE_MAX_GIB", repr((needed - 1) / (1 << 30)))
    before = threading.active_count()
    with pytest.raises(HeadraceError, match="too small") as caught:
        Reader(f"file://{folder}", "train", PLAN, ALONE)
    assert caught.value.expected == f"at least {needed / (1 << 30):.4g} GiB"
    assert threading.active_count() == before


def test_two_versions_share_what_is_equal_and_mix_nothing(
    folder: Path, cache: Path, tmp_path: Path
) -> None:
    other = write_decoded(tmp_path / "other", splits={"train": ROWS["train"]}, shape=SHAPE, seed=9)
    assert read(f"file://{folder}") == read(folder)
    num_before = len(shard_files(cache))
    assert read(f"file://{other}") == read(other)
    assert len(shard_files(cache)) == 2 * num_before


def test_a_damaged_sample_in_the_cache_has_its_substitute_with_no_room_to_spare(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, told = f"file://{folder}", list[Substitution]()
    needed = held_bytes(url, PLAN)
    expected = read(url)
    for number, rows in enumerate(ROWS["train"]):
        image = draw(rows, SHAPE, 10, [0, number])[0][rows // 2].tobytes()
        for path in shard_files(cache):
            content = path.read_bytes()
            path.write_bytes(content.replace(image, bytes([image[0] ^ 1]) + image[1:]))
    monkeypatch.setenv("HEADRACE_CACHE_MAX_GIB", repr(needed / (1 << 30)))
    with Reader(url, "train", PLAN, ALONE, told.append) as reader:
        batches = reader.batches(reader.start(), num_epochs=2)
        ids = [part.ids.numpy().tobytes() for batch in batches for part in batch.microbatches]
    assert ids == [part[2] for part in expected]
    assert len(told) == len(ROWS["train"])


def test_keys_and_images_come_out_of_turn(folder: Path) -> None:
    with Reader(f"file://{folder}", "train", PLAN, ALONE) as reader:
        batches = reader.batches(reader.start())
        next(batches)
        ids = torch.tensor([200, 3, 80])
        assert reader.keys(ids)[1] == "train/00000/000003"
        with Reader(folder, "train", PLAN, ALONE) as local:
            assert np.array_equal(reader.images(ids.numpy()), local.images(ids.numpy()))
        assert sum(1 for _ in batches) == reader.num_steps_per_epoch - 1


def test_closing_in_the_middle_leaves_no_thread_file_or_mapping(folder: Path, cache: Path) -> None:
    reader = Reader(f"file://{folder}", "train", PLAN, ALONE)
    batches = reader.batches(reader.start(), num_epochs=3)
    next(batches)
    reader.close()
    del reader, batches
    names = {thread.name for thread in threading.enumerate()}
    assert not [name for name in names if name.startswith("headrace")]
    assert str(cache) not in Path("/proc/self/maps").read_text()
    links = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert not [link for link in links if str(cache) in link]


def test_the_cache_lies_where_this_machine_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert remote.cache_folder(machine()) == tmp_path / "cache"
    monkeypatch.delenv("HEADRACE_CACHE_FOLDER")
    assert remote.cache_folder(machine()).parts[-2:] == (".state", "shards")


def test_evaluation_out_of_a_bucket_sees_every_sample_once(folder: Path) -> None:
    ids = b"".join(part[2] for part in read(f"file://{folder}", EVALUATION, num_epochs=1))
    seen = np.frombuffer(ids, np.int64)
    assert sorted(seen[seen != PADDING].tolist()) == list(range(sum(ROWS["train"])))
