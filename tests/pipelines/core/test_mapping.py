import errno
import functools
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

from pipelines.core import cluster, mapping
from pipelines.core.errors import HeadraceError
from pipelines.core.mapping import map_over, progress


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with cluster.connect(cluster.Machine(num_workers=2)) as connected:
        yield connected


def slow_first(number: int) -> int:
    time.sleep(0.05 if number == 0 else 0)
    return number * number


def test_results_stand_in_the_order_of_the_items(client: Client) -> None:
    items = list(range(20))
    assert map_over(client, slow_first, items, describe="t") == [n * n for n in items]


def test_two_maps_of_one_name_do_not_share_results(client: Client) -> None:
    assert map_over(client, slow_first, [2], describe="t") == [4]
    assert map_over(client, slow_first, [3], describe="t") == [9]


def test_no_items_give_no_results(client: Client) -> None:
    assert map_over(client, slow_first, [], describe="t") == []


def flaky(folder: Path, number: int) -> int:
    """Fail the first two times."""
    attempts = len(list(folder.glob(f"{number}-*")))
    (folder / f"{number}-{attempts}").touch()
    if attempts < 2:
        raise OSError(attempts)
    return number


def test_a_task_that_fails_twice_is_tried_a_third_time(client: Client, tmp_path: Path) -> None:
    logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)
    assert map_over(client, functools.partial(flaky, tmp_path), [1, 2], describe="t") == [1, 2]


def refuse(folder: Path, number: int) -> int:
    (folder / f"{number}-{time.monotonic_ns()}").touch()
    if number >= 2:
        message = f"no {number}"
        raise HeadraceError(message)
    return number


def test_a_fault_is_not_retried_and_the_first_in_order_is_raised(
    client: Client, tmp_path: Path
) -> None:
    with pytest.raises(HeadraceError, match="no 2"):
        map_over(client, functools.partial(refuse, tmp_path), [3, 1, 2][::-1], describe="t")
    assert len(list(tmp_path.iterdir())) == 3


def fill_the_disk(folder: Path, number: int) -> int:
    (folder / f"{number}-{time.monotonic_ns()}").touch()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.tar")


def test_a_full_disk_is_told_once_and_not_tried_again(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="No space left on device") as caught:
        map_over(client, functools.partial(fill_the_disk, tmp_path), [1], describe="t")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == "x.tar"
    assert len(list(tmp_path.iterdir())) == 1
    assert "Traceback" not in capfd.readouterr().err


def test_progress_passes_everything_on_and_says_how_far_it_is(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "_SECONDS_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(logging.getLogger("headrace"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="headrace.progress"):
        assert list(progress(iter("ab"), total=2, describe="letters")) == ["a", "b"]
    assert [record.getMessage() for record in caplog.records] == [
        "letters: 1 of 2",
        "letters: 2 of 2",
    ]


def test_in_this_process_results_stand_in_order_too() -> None:
    items = list(range(20))
    found = mapping.map_here(slow_first, items, num_threads=3, describe="t")
    assert found == [n * n for n in items]
    assert mapping.map_here(slow_first, [], num_threads=3, describe="t") == []


def test_in_this_process_a_task_is_tried_three_times_too(tmp_path: Path) -> None:
    task = functools.partial(flaky, tmp_path)
    assert mapping.map_here(task, [1, 2], num_threads=1, describe="t") == [1, 2]
    assert len(list(tmp_path.iterdir())) == 6


def refused(number: int) -> int:
    time.sleep(0.05 if number == 1 else 0)
    raise HeadraceError(f"fault {number}")


def test_in_this_process_the_first_fault_in_the_order_of_items_is_told() -> None:
    with pytest.raises(HeadraceError, match="fault 1"):
        mapping.map_here(refused, [1, 2, 3], num_threads=3, describe="t")
