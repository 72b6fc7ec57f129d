import logging
import threading
from pathlib import Path

import pytest

from trainers.reader.substitute import Substitution
from trainers.substituted import Ledger, record


def one(sample: int) -> Substitution:
    return Substitution(sample, f"key{sample}", sample + 1, f"key{sample + 1}", f"/disk/a:{sample}")


def test_what_all_processes_noted_is_told_once_by_sample(tmp_path: Path) -> None:
    first, second, after_a_kill = (Ledger(tmp_path / "run") for _ in range(3))
    for ledger, sample in ((first, 7), (second, 3), (first, 9), (after_a_kill, 7)):
        ledger.note(one(sample))
    assert after_a_kill.entries() == [one(3), one(7), one(9)]


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.note(one(1))
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text() + '{"sample": 2, "ke')
    assert Ledger(tmp_path).entries() == [one(1)]


def test_threads_do_not_write_into_each_others_lines(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    threads = [threading.Thread(target=ledger.note, args=(one(n),)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.entries() == [one(n) for n in range(16)]


def test_the_log_says_where_the_damage_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="headrace.train"):
        Ledger(tmp_path).note(one(4))
    assert "/disk/a:4, which the sample with key 'key5' stands in for" in caplog.text


def test_a_lineage_names_samples_and_no_path_of_the_machine() -> None:
    assert record([]) == {}
    found = record([one(4)])
    assert found == {
        "substituted": [{"key": "key4", "sample": 4, "substitute_key": "key5", "substitute": 5}]
    }
