import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.records import read_ipc, with_metadata, write_ipc
from pipelines.core.shards.decoded import INDEX
from tests.decoded import write_decoded
from tests.project import run
from trainers.reader.index import mend_command, open_index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_decoded(
        tmp_path / "decoded", splits={"train": [3, 0, 5], "test": [2]}, shape=(4, 6, 3)
    )


def test_the_version_is_the_digest_of_the_index(folder: Path) -> None:
    content = (folder / "index.arrow").read_bytes()
    assert open_index(folder).version == hashlib.sha256(content).hexdigest()


def test_the_version_is_the_same_behind_a_url(folder: Path) -> None:
    found = open_index(f"file://{folder}")
    assert (found.version, found.url) == (open_index(folder).version, f"file://{folder}")


def test_a_damaged_index_behind_a_url_is_named_by_it(folder: Path) -> None:
    (folder / "index.arrow").write_bytes(b"no Arrow")
    with pytest.raises(HeadraceError) as caught:
        open_index(f"file://{folder}/")
    assert caught.value.where == f"file://{folder}/index.arrow"
    assert caught.value.fix == "copy datasets/NAME/decoded there once more"


def test_the_index_tells_shape_classes_and_splits(folder: Path) -> None:
    index = open_index(folder)
    assert index.shape == (4, 6, 3)
    assert index.labels == tuple(f"class{number}" for number in range(10))
    assert index.splits == ("test", "train")


def test_mean_and_deviation_are_those_of_the_train_images(folder: Path) -> None:
    shards = [read_ipc(folder / f"train-0000{bucket}.arrow") for bucket in (0, 2)]
    images = np.concatenate(
        [np.stack(list(shard["image"].to_numpy())).reshape(-1, 4, 6, 3) for shard in shards]
    )
    index = open_index(folder)
    assert index.mean == pytest.approx(images.mean((0, 1, 2)) / 255, abs=1e-6)
    assert index.std == pytest.approx(images.std((0, 1, 2)) / 255, abs=1e-6)


def test_shards_of_a_split_ascend_by_bucket_and_number_its_samples(folder: Path) -> None:
    path = folder / "index.arrow"
    table = read_ipc(path).take(pa.array([2, 0, 1]))
    write_ipc(path, table)
    split = open_index(folder).split("train")
    assert [shard.name for shard in split.shards] == ["train-00000.arrow", "train-00002.arrow"]
    assert split.num_rows.tolist() == [3, 5]
    assert split.first_ids.tolist() == [0, 3]
    assert split.num_samples == 8


def test_a_split_without_samples_is_an_error_that_names_the_others(folder: Path) -> None:
    with pytest.raises(HeadraceError, match=r"'val' has no samples") as caught:
        open_index(folder).split("val")
    assert "test, train" in str(caught.value)


def test_a_folder_without_an_index_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="no decoded dataset") as caught:
        open_index(tmp_path)
    assert caught.value.fix == "dvc repro decode"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def overwrite(path: Path) -> None:
    path.write_bytes(b"no Arrow at all")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def age(path: Path) -> None:
    write_ipc(path, with_metadata(read_ipc(path), {"format": "0"}))


def lose_a_column(path: Path) -> None:
    table = read_ipc(path)
    write_ipc(path, table.drop_columns(["sha256"]))


@pytest.mark.parametrize("damage", [truncate, overwrite, empty, age, lose_a_column])
def test_an_index_that_cannot_be_used_is_named(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    path = folder / "index.arrow"
    damage(path)
    with pytest.raises(HeadraceError, match="cannot be used") as caught:
        open_index(folder)
    assert caught.value.where == str(path)
    assert caught.value.fix == mend_command(path)


def test_a_hundred_thousand_shards_open_in_half_a_second(tmp_path: Path, folder: Path) -> None:
    number = 100_000
    columns: dict[str, Any] = {
        "split": ["train"] * number,
        "bucket": np.arange(number, dtype=np.int32),
        "shard": [f"train-{bucket:05d}.arrow" for bucket in range(number)],
        "num_rows": np.full(number, 10_000),
        "num_bytes": np.full(number, 10**9),
        "sha256": ["0" * 64] * number,
    }
    metadata = read_ipc(folder / "index.arrow").schema.metadata
    table = pa.table(columns, schema=INDEX).replace_schema_metadata(metadata)
    write_ipc(tmp_path / "index.arrow", table)
    started = time.process_time()
    split = open_index(tmp_path).split("train")
    seconds = time.process_time() - started
    assert split.num_samples == 10**9
    assert seconds < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("link", ["copy", "hardlink", "symlink"])
def test_the_command_mends_damage_that_dvc_does_not_see(tmp_path: Path, link: str) -> None:
    run(tmp_path, "git", "init", "-q")
    run(tmp_path, "dvc", "init", "-q")
    run(tmp_path, "dvc", "config", "cache.type", link)
    (tmp_path / "dvc.yaml").write_text(
        "stages: {decode: {cmd: 'mkdir -p out && echo sound > out/shard.arrow', outs: [out]}}\n"
    )
    run(tmp_path, "dvc", "repro", "-q")
    shard = tmp_path / "out" / "shard.arrow"
    # A flipped bit on a disk changes neither size, time nor mode.
    damaged = shard.resolve()
    before = damaged.stat()
    damaged.chmod(0o644)
    damaged.write_text("soUnd\n")
    damaged.chmod(before.st_mode)
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "up to date" in run(tmp_path, "dvc", "status").stdout
    run(tmp_path, "sh", "-c", mend_command(shard))
    assert shard.read_text() == "sound\n"
