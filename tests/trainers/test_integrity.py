import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from pipelines.core.errors import HeadraceError
from tests.trainers.runs import rewritten
from trainers.chain import Chain
from trainers.integrity import record_faults, shard_faults, shards_of
from trainers.prepare import training_plan
from trainers.reader.index import open_index
from trainers.reader.order import Order
from trainers.record import LINEAGE, STEPS, WEIGHTS, open_run


def faults(folder: Path) -> list[str]:
    return list(record_faults(open_run(folder)))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_the_files_of_a_run_agree(finished: Path) -> None:
    assert faults(finished) == []


def test_a_flipped_bit_of_the_weights_names_its_tensor(finished: Path) -> None:
    flip(finished / WEIGHTS, -1)
    (line,) = faults(finished)
    assert line.startswith("model.safetensors: the tensor ")
    assert line.endswith(" is not the one that the run wrote")


def test_a_changed_param_is_found_in_the_file_where_it_was_changed(finished: Path) -> None:
    rewritten(finished / WEIGHTS, b'"lr\\": 0.05', b'"lr\\": 0.06')
    (line,) = faults(finished)
    assert line.startswith("model.safetensors (its metadata) was changed: params.lr: 0.05 -> 0.06")
    rewritten(finished / WEIGHTS, b'"lr\\": 0.06', b'"lr\\": 0.05')
    rewritten(finished / LINEAGE, b'"lr": 0.05', b'"lr": 0.07')
    (line,) = faults(finished)
    assert line.startswith("lineage.json was changed: params.lr: 0.07 -> 0.05")


def test_metadata_that_no_one_reads_count_too(finished: Path) -> None:
    rewritten(finished / WEIGHTS, b'\\"class1\\"', b'\\"klass1\\"')
    (line,) = faults(finished)
    assert line.startswith("model.safetensors: its SHA-256 is not the one in lineage.json")


def test_a_tensor_that_the_record_does_not_name_is_told(finished: Path) -> None:
    record = json.loads((finished / LINEAGE).read_text())
    name = min(record["weights"]["tensors"])
    record["weights"]["tensors"] |= {"extra": record["weights"]["tensors"].pop(name)}
    (finished / LINEAGE).write_text(json.dumps(record))
    assert faults(finished) == [
        f"model.safetensors: the tensor {name} is not the one that the run wrote",
        "model.safetensors: the tensor extra is missing",
    ]


def test_other_steps_are_told(finished: Path) -> None:
    chain = Chain()
    chain.add(1, 0.5, None)
    chain.write(finished / STEPS)
    (line,) = faults(finished)
    assert line.startswith("steps.parquet: its rows are not those that the run wrote")
    assert "over 1 steps" in line
    assert "over 8 steps" in line


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"PAR1")])
def test_steps_that_cannot_be_read_are_told(finished: Path, harm: Callable[[Path], None]) -> None:
    harm(finished / STEPS)
    (line,) = faults(finished)
    assert line.startswith("steps.parquet cannot be read: ")


def test_without_a_record_nothing_can_be_compared(finished: Path) -> None:
    (finished / LINEAGE).unlink()
    with pytest.raises(HeadraceError, match="cannot be read"):
        faults(finished)


def test_steps_need_the_shards_that_hold_their_samples(finished: Path, data: Path) -> None:
    index = open_index(data)
    split = index.split("train")
    plan = training_plan(open_run(finished).config, index)
    order = Order(index.version, "train", split.num_rows, plan)
    assert shards_of(order, split, range(8)) == [0, 1, 2]
    for step in range(8):
        ids = order.draw_epoch(step // 4).batches(step % 4, 1).ravel()
        expected = {0 if it < 24 else 1 if it < 44 else 2 for it in ids.tolist()}
        assert set(shards_of(order, split, range(step, step + 1))) == expected
    assert set(shards_of(order, split, range(3, 5))) == {
        *shards_of(order, split, range(3, 4)),
        *shards_of(order, split, range(4, 5)),
    }


def test_a_shard_that_is_not_the_index_s_is_named_with_its_mend(tmp_path: Path, data: Path) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "decoded"))
    index = open_index(folder)
    split = index.split("train")
    assert list(shard_faults(index, split, [0, 1, 2])) == []
    flip(split.path(1), -200)
    (line,) = shard_faults(index, split, [0, 1, 2])
    assert line.startswith(f"{split.path(1)} is not the file that the index names")
    assert sha256(split.path(1).read_bytes()).hexdigest() in line
    split.path(2).unlink()
    assert [*shard_faults(index, split, [2])] == [
        f"{split.path(2)} is missing   (mend: dvc checkout)"
    ]
