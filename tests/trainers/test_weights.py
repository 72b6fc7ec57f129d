import hashlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipelines.core.errors import HeadraceError
from trainers.weights import About, read, read_about, require_same_data, weights_sha256, write

ROOT = Path(__file__).parents[2]
ABOUT = About(
    model="small",
    shape=(28, 28, 1),
    labels=("Boot", "Täsche", "靴"),
    dataset_version="ab" * 32,
    mean=(0.286,),
    std=(0.353,),
    params={"lr": 1e-05, "epochs": 3, "model": "small"},
    seeds={"seed": 1},
    code={"trainers/train.py": "ab" * 20},
    environment={"threads": 1, "torch": {"cuda": None}},
    chain={"digest": "cd" * 32, "num_steps": 5},
)


def tensors() -> dict[str, Tensor]:
    shared = torch.arange(6.0).reshape(2, 3)
    return {
        "stem.weight": shared,
        "head.weight": shared,  # tied
        "head.bias": torch.tensor([1.5, -0.0, float("inf")], dtype=torch.bfloat16),
        "norm.num_batches_tracked": torch.tensor(7),
        "empty": torch.zeros(0, 4),
    }


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", tensors(), ABOUT)
    about, found = read(tmp_path / "m.safetensors")
    assert about == ABOUT
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_what_it_says_is_read_without_its_tensors(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", tensors(), ABOUT)
    assert read_about(tmp_path / "m.safetensors") == ABOUT
    with pytest.raises(HeadraceError, match="no weights to read"):
        read_about(tmp_path / "other.safetensors")


def test_who_may_read_it_is_for_the_umask_to_say(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write(tmp_path / "m.safetensors", tensors(), ABOUT)
    assert (tmp_path / "m.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_other_readers_of_safetensors_read_it(tmp_path: Path) -> None:
    write(tmp_path / "m.safetensors", tensors(), ABOUT)
    assert torch.equal(
        load_file(tmp_path / "m.safetensors")["stem.weight"], torch.arange(6.0).reshape(2, 3)
    )
    data = (tmp_path / "m.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    assert json.loads(metadata["headrace"])["labels"] == ["Boot", "Täsche", "靴"]


WRITE = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/trainers")
from test_weights import ABOUT, tensors
from trainers.weights import write
pairs = list(tensors().items())
write(Path(sys.argv[1]), dict(reversed(pairs)), ABOUT)
"""


def test_the_bytes_are_the_same_in_another_process_and_order(tmp_path: Path) -> None:
    write(tmp_path / "a", tensors(), ABOUT)
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path / "b")], check=True, cwd=ROOT)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_missing_file_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="dvc repro train") as caught:
        read(tmp_path / "m.safetensors")
    assert str(tmp_path / "m.safetensors") in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"not a safetensors file", b"\xff" * 4000])
def test_garbage_is_told_as_damage(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(HeadraceError, match="damaged"):
        read(tmp_path / "m.safetensors")


def test_one_flipped_bit_of_a_tensor_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, tensors(), ABOUT)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(HeadraceError, match="damaged: its tensors"):
        read(path)
    assert read(path, must_be_sound=False)[0] == ABOUT


def test_a_cut_file_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, tensors(), ABOUT)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(HeadraceError, match="damaged"):
        read(path)


@pytest.mark.parametrize(
    "metadata", [None, {"format": "pt"}, {"headrace": "{}"}, {"headrace": '{"model": "small"}'}]
)
def test_a_file_of_somebody_else_is_refused(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "m.safetensors", metadata)
    with pytest.raises(HeadraceError, match="does not say what model it holds"):
        read(tmp_path / "m.safetensors")


def test_the_hash_of_weights_is_the_documented_one() -> None:
    expected = hashlib.sha256(
        b'["a", "float32", [2]]\n'
        + struct.pack("<2f", 1, 2)
        + b'["b", "int64", []]\n'
        + struct.pack("<q", 5)
    ).hexdigest()
    assert weights_sha256({"b": torch.tensor(5), "a": torch.tensor([1.0, 2.0])}) == expected


def test_every_difference_changes_the_hash_of_weights() -> None:
    plain = torch.zeros(2, 3)
    one_bit = plain.clone()
    one_bit[1, 2] = -0.0
    variants = [
        {"a": plain},
        {"b": plain},
        {"a": one_bit},
        {"a": plain.reshape(3, 2)},
        {"a": plain.to(torch.int32)},
        {"a": plain, "b": torch.zeros(0)},
    ]
    assert len({weights_sha256(variant) for variant in variants}) == len(variants)


def test_strides_do_not_change_the_hash_of_weights() -> None:
    tensor = torch.arange(24.0).reshape(1, 2, 3, 4)
    strided = tensor.to(memory_format=torch.channels_last)
    assert weights_sha256({"a": strided}) == weights_sha256({"a": tensor})


def test_weights_of_other_data_are_refused_with_both_versions(tmp_path: Path) -> None:
    require_same_data("model", theirs="1111", ours="1111", where=tmp_path, fix="dvc repro")
    with pytest.raises(HeadraceError) as caught:
        require_same_data("model", theirs="1111", ours="2222", where=tmp_path, fix="dvc repro x")
    assert all(word in str(caught.value) for word in ("1111", "2222", "dvc repro x", "model"))
