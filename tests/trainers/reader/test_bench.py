import os
from pathlib import Path

import fsspec
import pytest

from tests.decoded import write_decoded
from trainers.reader.bench import Figures, main, measure


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_decoded(tmp_path_factory.mktemp("decoded"), splits={"train": [60, 40]})


def figures(cold: float, warm: float, store: float, memory: float) -> Figures:
    return Figures(cold, warm, store, memory, "disk")


def test_the_lower_ceiling_is_what_bounds() -> None:
    assert figures(93, 400, 100, 500).verdict == "storage-bound: 0.93 of what this disk gives"
    assert figures(450, 450, 900, 500).verdict == "memory-bound: 0.90 of what one thread copies"


def test_far_below_both_ceilings_the_reader_is_what_bounds() -> None:
    assert figures(40, 400, 100, 500).verdict == "reader-bound: 0.40 of what this disk gives"


def test_reading_is_what_a_cold_pass_takes_longer() -> None:
    assert figures(25, 100, 30, 200).reading == 0.75
    assert figures(101, 100, 300, 200).reading == 0


def test_a_folder_and_a_url_are_measured_without_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE_FOLDER", "/as/it/was")
    fsspec.filesystem("memory").put(f"{folder}/", "/bench/decoded/", recursive=True)
    for source, name in ((folder, "disk"), ("memory://bench/decoded", "store")):
        found = measure(source, "train", batch_size=20, num_threads=1, limit_s=0.05)
        assert found.store_name == name
        assert min(found.cold, found.warm, found.store, found.memory) > 0
    assert os.environ["HEADRACE_CACHE_FOLDER"] == "/as/it/was"


def test_the_command_prints_a_table_that_ends_with_the_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(folder), "--batch-size", "20", "--seconds", "0.05"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:15].strip() for line in lines[1:3]] == ["from the disk", "out of memory"]
    assert "-bound: " in lines[-1]


def test_data_that_are_not_there_end_the_command_by_a_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="ERROR: "):
        main([str(tmp_path)])
