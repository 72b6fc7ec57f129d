import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from pipelines.core.errors import HeadraceError
from tests.servers import Web, serve_web
from trainers.reader.cache import Blob, Closed
from trainers.reader.fetch import Fetcher, Patience, fetch_bytes

CONTENT = np.random.default_rng(0).bytes(1_000_000)
BLOB = Blob(hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
QUICK = Patience(
    piece_bytes=300_000,
    deadline_s=0.5,
    max_attempts=3,
    first_pause_s=0.01,
    longest_pause_s=0.05,
    least_hedge_s=0.1,
)


class Setting(NamedTuple):
    """A server, and a file to fetch into."""

    web: Web
    target: Path

    def download(self, patience: Patience = QUICK, closing: threading.Event | None = None) -> bytes:
        fetcher = Fetcher(self.web.url, patience, closing or threading.Event())
        with self.target.open("w+b") as file:
            fetcher.download("a.arrow", BLOB, file.fileno())
            return file.read()


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with serve_web() as web:
        web.files["a.arrow"] = CONTENT
        yield Setting(web, tmp_path / "shard")


def test_a_file_comes_in_pieces(setting: Setting) -> None:
    assert setting.download() == CONTENT
    assert len([request for request in setting.web.requests if "bytes=" in request]) == 4


def test_a_server_without_ranges_will_do(setting: Setting) -> None:
    setting.web.has_ranges = False
    assert setting.download() == CONTENT


@pytest.mark.parametrize("fault", ["500", "cut", "stall"])
def test_a_fault_that_passes_costs_no_byte(setting: Setting, fault: str) -> None:
    setting.web.faults = ["", fault, "", fault]
    assert setting.download() == CONTENT


@pytest.mark.parametrize(
    ("fault", "cause"), [("500", "500"), ("cut", "bytes"), ("stall", "no answer within 0.5 s")]
)
def test_a_fault_that_stays_names_shard_attempt_and_cause(
    setting: Setting, fault: str, cause: str
) -> None:
    setting.web.faults = ["", *[fault] * 20]
    with pytest.raises(HeadraceError, match="cannot be fetched") as caught:
        setting.download()
    assert caught.value.where == f"{setting.web.url}/a.arrow"
    assert str(caught.value.found).startswith(
        "attempt 3 of 3: bytes 300,000 to 600,000 of 1,000,000: "
    )
    assert cause in str(caught.value.found)


def test_a_straggler_gets_a_second_request_beside_it(setting: Setting) -> None:
    patience = Patience(piece_bytes=100_000, max_attempts=1, least_hedge_s=0.1)
    setting.web.faults = [*[""] * 9, "stall"]
    started = time.monotonic()
    assert setting.download(patience) == CONTENT
    assert time.monotonic() - started < 10  # The deadline is a minute away.
    assert setting.web.requests.count("GET a.arrow bytes=900000-999999") == 2


def test_wrong_bytes_are_fetched_again_and_then_refused(setting: Setting) -> None:
    setting.web.files["a.arrow"] = CONTENT[:-1] + b"\0"
    with pytest.raises(HeadraceError, match="not the one that the index names") as caught:
        setting.download()
    assert caught.value.expected == f"SHA-256 {BLOB.sha256}"
    assert setting.web.requests.count("GET a.arrow bytes=900000-999999") == 3


def test_a_file_that_is_too_short_is_no_file(setting: Setting) -> None:
    setting.web.files["a.arrow"] = CONTENT[:950_000]
    with pytest.raises(HeadraceError, match="cannot be fetched") as caught:
        setting.download()
    assert "50,000 bytes came instead of 100,000" in str(caught.value.found)


def test_a_file_that_is_not_there_is_not_asked_for_twice(setting: Setting) -> None:
    setting.web.files.clear()
    with pytest.raises(HeadraceError, match="not in the bucket"):
        setting.download()
    assert len(setting.web.requests) == 1
    with pytest.raises(FileNotFoundError):
        fetch_bytes(setting.web.url, "index.arrow")


def test_closing_ends_a_request_at_once(setting: Setting) -> None:
    closing = threading.Event()
    setting.web.faults = ["stall"] * 9
    threading.Timer(0.2, closing.set).start()
    started = time.monotonic()
    with pytest.raises(Closed):
        setting.download(Patience(), closing)
    assert time.monotonic() - started < 10


def test_a_small_file_comes_whole(setting: Setting) -> None:
    setting.web.faults = ["500"]
    assert fetch_bytes(setting.web.url, "a.arrow") == CONTENT


def test_a_fork_is_told_rather_than_hung(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = Fetcher(setting.web.url, QUICK, threading.Event())
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    with pytest.raises(HeadraceError) as caught:
        fetcher.read("a.arrow")
    assert "does not survive a fork" in str(caught.value.found)


def test_an_unknown_protocol_is_refused_at_once() -> None:
    with pytest.raises(HeadraceError, match="knows no protocol 'httpz'"):
        Fetcher("httpz://host/folder", QUICK, threading.Event())
