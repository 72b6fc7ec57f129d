import dataclasses
import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reader import figures, ours, storage
from benchmarks.reader.contenders import BATCH_SIZE, PEERS, Data, flat_file, memmap, settings
from benchmarks.reader.data import NUM_SHARDS, Workload, write_decoded

bench = importlib.import_module("benchmarks.reader.__main__")
TINY = Workload("tiny", (4, 4, 1), NUM_SHARDS * 40)


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoded(tmp_path_factory.mktemp("bench"), TINY)


@pytest.fixture(scope="module")
def data(decoded: Path) -> Data:
    return Data(decoded, TINY.shape, TINY.num_samples)


def test_the_data_are_written_once(decoded: Path) -> None:
    before = (decoded / "index.arrow").stat().st_mtime_ns
    assert write_decoded(decoded.parents[1], TINY) == decoded
    assert (decoded / "index.arrow").stat().st_mtime_ns == before


def test_contenders_read_different_samples_of_the_data_in_each_batch(
    data: Data, tmp_path: Path
) -> None:
    rows = {row.tobytes() for row in flat_file(data, tmp_path)}
    assert len(rows) == TINY.num_samples
    for contender in (memmap, ours.reader):
        stream = contender(data, tmp_path)
        for batch in itertools.islice(stream, 5):  # Two passes and the beginning of a third.
            found = {row.tobytes() for row in np.asarray(batch)}
            assert len(found) == BATCH_SIZE
            assert found <= rows


def test_the_ceiling_copies_as_many_bytes_as_a_batch_has(data: Data, tmp_path: Path) -> None:
    first, second = itertools.islice(ours.ceiling(data, tmp_path), 2)
    assert first is second
    assert first.nbytes == BATCH_SIZE * TINY.row_bytes


@pytest.mark.slow
def test_a_measurement_has_a_result_of_each_round_and_contender(tmp_path: Path) -> None:
    names = ["ceiling", "Headrace, 1 thread"]
    results = bench.measure(TINY, tmp_path, names, num_rounds=3)
    assert [one.contender for one in results] == names
    for one in results:
        assert len(one.samples_per_s) == len(one.ratios) == 3
        assert one.speed > 0
    assert results[0].ratio == 1
    assert "Headrace, 1 thread" in bench.table(results)


def test_every_contender_says_its_settings() -> None:
    for contender in (*PEERS.values(), ours.reader, ours.ceiling):
        assert len(settings(contender)) > len('""') + 10


def test_windows_mix_classes_as_a_full_shuffle_does() -> None:
    found = figures.shuffling()
    chi_squares = [value for name, value in found.items() if "chi-square" in name]
    assert len(chi_squares) == 2
    assert all(0.95 < value < 1.05 for value in chi_squares)


@pytest.mark.slow
def test_storage_is_measured_on_a_cold_disk_and_on_s3(
    decoded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_SMALL", dataclasses.replace(TINY, name="small"))
    with pytest.MonkeyPatch.context() as patch:
        for name in (*storage.CREDENTIALS, "AWS_ENDPOINT_URL", "HEADRACE_CACHE_FOLDER"):
            patch.setenv(name, "")  # What the benchmark sets is gone afterwards.
        found = storage.measure(decoded, tmp_path)
    assert len(found) == 2
    assert all(value > 0 for value in found.values())
