import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.errors import HeadraceError
from trainers.reader.cache import Blob, Cache, Closed

SIZE = 100


def content(number: int) -> bytes:
    return bytes([number]) * SIZE


def blob(number: int) -> Blob:
    return Blob(hashlib.sha256(content(number)).hexdigest(), SIZE)


def rank_of_numbers(digest: str, _: float) -> float:
    """Shard 0 is needed soonest, shard 1 after it, and so on."""
    return float(next(number for number in range(50) if blob(number).sha256 == digest))


def used(folder: Path) -> int:
    names = ("lock", "reader-")
    return sum(path.stat().st_size for path in folder.iterdir() if not path.name.startswith(names))


class User:
    """One reader's view of a cache, and what it fetched."""

    def __init__(self, folder: Path, max_bytes: int = 10 * SIZE) -> None:
        self.closing = threading.Event()
        self.cache = Cache(folder, max_bytes, self.closing)
        self.fetched: list[int] = []

    def get(self, number: int) -> BinaryIO:
        def write(descriptor: int) -> None:
            self.fetched.append(number)
            with self.cache._locked():  # What another renames meanwhile would count twice.
                assert used(self.cache.folder) <= self.cache.max_bytes
            os.pwrite(descriptor, content(number), 0)

        return self.cache.get(blob(number), write, rank_of_numbers)

    def kept(self) -> set[int]:
        names = {path.name for path in self.cache.folder.iterdir()}
        return {number for number in range(50) if blob(number).sha256 in names}


def test_what_is_there_is_not_fetched_again_also_by_another_process(tmp_path: Path) -> None:
    first, second = User(tmp_path), User(tmp_path)
    with first.get(3) as one, second.get(3) as other:
        assert one.read() == other.read() == content(3)
    assert (first.fetched, second.fetched) == ([3], [])


def test_readers_that_want_a_shard_at_once_fetch_it_once(tmp_path: Path) -> None:
    users = [User(tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        for file in threads.map(lambda user: user.get(1), users):
            assert file.read() == content(1)
            file.close()
    assert sum(len(user.fetched) for user in users) == 1


def test_what_is_needed_furthest_in_the_future_makes_room(tmp_path: Path) -> None:
    user = User(tmp_path, 3 * SIZE)
    for number in (7, 2, 9, 4):
        user.get(number).close()
    assert user.kept() == {7, 2, 4}


def test_what_is_held_is_not_removed(tmp_path: Path) -> None:
    user = User(tmp_path, 2 * SIZE)
    with user.get(9):
        user.get(1).close()
        user.get(2).close()
        assert user.kept() == {9, 2}


@given(numbers=st.lists(st.integers(0, 6), max_size=15), cap=st.integers(1, 4))
def test_the_cap_holds_at_every_moment_and_every_byte_is_right(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], cap: int
) -> None:
    user = User(tmp_path_factory.mktemp("cache"), cap * SIZE)
    for number in numbers:
        with user.get(number) as file:  # `get` looks at the cap where it writes.
            assert file.read() == content(number)
    assert used(user.cache.folder) <= cap * SIZE


def test_waiting_for_room_ends_when_the_reader_closes(tmp_path: Path) -> None:
    user = User(tmp_path, SIZE)
    with user.get(1):
        threading.Timer(0.1, user.closing.set).start()
        with pytest.raises(Closed):
            user.get(2)


def test_room_that_is_given_up_is_taken(tmp_path: Path) -> None:
    user = User(tmp_path, SIZE)
    threading.Timer(0.1, user.get(1).close).start()
    with user.get(2) as file:
        assert file.read() == content(2)


def test_a_fetch_that_fails_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    user = User(tmp_path)

    def fail(_: int) -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        user.cache.get(blob(1), fail, rank_of_numbers)
    assert used(tmp_path) == 0
    with user.get(1) as file:
        assert file.read() == content(1)


def test_a_shard_of_another_length_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / blob(1).sha256).write_bytes(content(1)[:-1])
    user = User(tmp_path)
    with user.get(1) as file:
        assert file.read() == content(1)


def test_a_killed_process_leaves_nothing_that_is_used_or_kept(tmp_path: Path) -> None:
    script = (
        "import os, sys, threading, time\n"
        "from pathlib import Path\n"
        "from trainers.reader.cache import Blob, Cache\n"
        "def write(descriptor):\n"
        "    os.pwrite(descriptor, b'x' * 50, 0)\n"
        "    print('half', flush=True)\n"
        "    time.sleep(60)\n"
        "cache = Cache(Path(sys.argv[1]), 1000, threading.Event())\n"
        "held = cache.register(1000, 'killed')\n"
        "cache.get(Blob(sys.argv[2], 100), write, lambda *_: 0.0)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), blob(1).sha256]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"half\n"
        user = User(tmp_path)
        with pytest.raises(HeadraceError, match="too small"):
            user.cache.register(SIZE, "mine")
        victim.send_signal(signal.SIGKILL)
    user.cache.register(SIZE, "mine").close()
    with user.get(1) as file:
        assert file.read() == content(1)
    assert not list(tmp_path.glob("tmp-*"))


def test_a_cap_below_what_all_open_readers_hold_is_refused_with_the_number(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 3 << 30, threading.Event())
    with cache.register(1 << 30, "train"), cache.register(1 << 30, "train"):  # two ranks
        with cache.register(1 << 30, "val"), pytest.raises(HeadraceError) as caught:
            cache.register(2 << 30, "another training")
        assert caught.value.expected == "at least 4 GiB, 2 GiB of them for other open readers"
        assert caught.value.found == "3 GiB"
        assert caught.value.fix
        assert "HEADRACE_CACHE_MAX_GIB=4.04" in caught.value.fix
        cache.register(2 << 30, "another training").close()  # That of `val` was closed.


def test_a_full_disk_is_told_in_words_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HeadraceError, match="no space left on the disk for the cache"):
        User(tmp_path).get(1)
    assert used(tmp_path) == 0


def test_many_users_with_little_room_never_see_a_wrong_byte(tmp_path: Path) -> None:
    def use(seed: int) -> None:
        user = User(tmp_path, 6 * SIZE)
        for step in range(20):
            number = (seed * 7 + step * (seed + 1)) % 12
            with user.get(number) as file:
                assert file.read() == content(number)

    run_at_once(use, 4)
    assert used(tmp_path) <= 6 * SIZE


def run_at_once(function: Callable[[int], None], num_threads: int) -> None:
    with ThreadPoolExecutor(num_threads) as threads:
        list(threads.map(function, range(num_threads)))
