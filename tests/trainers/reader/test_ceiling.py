from pathlib import Path

import fsspec
import pytest

from trainers.reader import ceiling


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a", tmp_path / "b", tmp_path / "empty"]
    for path, num_bytes in zip(made, (3_000_000, 500_000, 0), strict=True):
        path.write_bytes(bytes(num_bytes))
    return made


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that goes on by a second whenever it is looked at."""
    clock = [0.0]

    def tick() -> float:
        clock[0] += 1
        return clock[0]

    monkeypatch.setattr("trainers.reader.ceiling.time.perf_counter", tick)
    return clock


def test_a_disk_is_read_to_the_end_within_the_time(paths: list[Path], now: list[float]) -> None:
    rate = ceiling.disk(paths, 1e9)
    assert rate * (now[0] - 1) == pytest.approx(3_500_000)


def test_a_disk_is_left_when_the_time_is_over(paths: list[Path], now: list[float]) -> None:
    # The clock is looked at before each read: one of a MiB, at most, comes within the time.
    rate = ceiling.disk(paths[:1], 1.5)
    assert rate * (now[0] - 1) == pytest.approx(1 << 20)


def test_a_store_is_downloaded_whole(paths: list[Path]) -> None:
    filesystem = fsspec.filesystem("memory")
    for path in paths:
        filesystem.pipe_file(f"/ceiling/{path.name}", path.read_bytes())
    names = [path.name for path in paths]
    assert ceiling.store("memory://ceiling", names, 2, 60) > 0
    assert ceiling.store("memory://ceiling", names, 2, -1) == 0  # no time, no byte


def test_memory_counts_what_is_copied_also_from_files_shorter_than_a_batch(
    paths: list[Path], now: list[float]
) -> None:
    rate = ceiling.memory(paths[1:], 1_000_000, 50)
    # The clock was looked at before the first copy, and after each of 49.
    assert rate * 52 == pytest.approx(49 * 500_000)
