"""A tar that four readers agree on, and that is the same bytes for the same samples."""

import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wds2idx  # type: ignore[import-untyped]
import webdataset
from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from pipelines.core.shards.tars import Member, TarShard

KEYS = ["a", "cat/1", "cat/10", "cat/2", "größe/写真_1", "x" * 90]
SAMPLES = {
    key: {"jpg": bytes(range(256)) * number + b"end", "cls": b"%d" % number, "json": b"{}"}
    for number, key in enumerate(KEYS)
}


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    path = tmp_path / "train-00003.tar"
    write(path)
    return path


def write(path: Path) -> dict[str, Member]:
    with TarShard(path) as shard:
        return {key: shard.add(key, components)["jpg"] for key, components in SAMPLES.items()}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves it open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_it(tar: Path) -> None:
    dataset = webdataset.WebDataset(str(tar), shardshuffle=False, empty_check=False)
    assert {
        sample["__key__"]: {name: sample[name] for name in ("jpg", "cls", "json")}
        for sample in dataset
    } == SAMPLES


def test_gnu_tar_lists_and_extracts_it(tar: Path, tmp_path: Path) -> None:
    listed = subprocess.run(
        ["tar", "--quoting-style=literal", "-tf", tar], capture_output=True, check=True, text=True
    )
    names = [f"{key}.{ext}" for key in KEYS for ext in ("cls", "jpg", "json")]
    assert listed.stdout.splitlines() == names
    assert listed.stderr == ""
    target = tmp_path / "extracted"
    target.mkdir()
    subprocess.run(["tar", "-xf", tar, "-C", target], check=True)
    for key in KEYS:
        assert (target / f"{key}.jpg").read_bytes() == SAMPLES[key]["jpg"]


def test_tarfile_reads_it_and_finds_plain_ustar(tar: Path) -> None:
    with tarfile.open(tar) as opened:
        for member in opened:
            key, _, extension = member.name.partition(".")
            file = opened.extractfile(member)
            assert file is not None
            assert file.read() == SAMPLES[key][extension]
            assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o444)
            assert (member.uname, member.gname) == ("headrace", "headrace")
            assert not member.pax_headers
    assert tar.read_bytes()[257:265] == b"ustar\x0000"


def test_dali_reads_it_by_the_index(tar: Path) -> None:
    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        outputs: Any = fn.readers.webdataset(
            paths=[str(tar)],
            index_paths=[str(tar.with_suffix(".idx"))],
            ext=["jpg", "cls"],
            dtypes=[types.UINT8, types.UINT8],
        )
        pipeline.set_outputs(*outputs)
    pipeline.build()
    for key in KEYS:
        found = [np.asarray(output[0]).tobytes() for output in pipeline.run()]
        assert found == [SAMPLES[key]["jpg"], SAMPLES[key]["cls"]]


def test_the_index_is_what_wds2idx_writes(
    tar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAR_OPTIONS", "--quoting-style=literal")
    other = tmp_path / "other.idx"
    with wds2idx.IndexCreator(str(tar), str(other), verbose=False) as creator:
        creator.create_index()
    assert tar.with_suffix(".idx").read_text() == other.read_text()


def test_members_say_where_the_data_lie(tmp_path: Path) -> None:
    path = tmp_path / "train-00000.tar"
    members = write(path)
    data = path.read_bytes()
    for key, (offset, length) in members.items():
        assert data[offset : offset + length] == SAMPLES[key]["jpg"]


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "one.tar", tmp_path / "two.tar"
    write(first)
    write(second)
    assert first.read_bytes() == second.read_bytes()
    assert first.with_suffix(".idx").read_bytes() == second.with_suffix(".idx").read_bytes()


def test_a_tar_that_was_not_finished_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "train-00000.tar"

    def fail_midway() -> None:
        with TarShard(path) as shard:
            shard.add("a", SAMPLES["a"])
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_midway()
    assert not list(tmp_path.iterdir())


def test_a_key_too_long_for_ustar_is_refused(tmp_path: Path) -> None:
    with TarShard(tmp_path / "train-00000.tar") as shard, pytest.raises(AssertionError):
        shard.add("x" * 98, {"jpg": b""})
