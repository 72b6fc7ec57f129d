"""Tars become pixels of one shape; a bad image costs its own row and nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from pipelines import decode, shard
from pipelines.core import records, stage
from pipelines.core.errors import HeadraceError
from pipelines.core.images import decoder
from pipelines.core.storage import sha256_file
from tests import pictures
from tests.packed import (
    LABELS,
    SPLITS,
    bytes_of,
    label_of,
    write_cleaned,
    write_params,
    write_shards,
)

PARAMS = {
    "height_px": pictures.HEIGHT,
    "width_px": pictures.WIDTH,
    "channels": 3,
    "fit": "crop",
    "device": "cpu",
    "max_rejected_fraction": 0.5,
}
JPEG = pictures.encode(pictures.picture(), "JPEG", quality=95)
PNG = pictures.encode(pictures.picture(), "PNG")
GOOD = {
    "train-00000": {f"a{n:03d}": (JPEG, PNG)[n % 2] for n in range(20)},
    "train-00003": {"b": PNG},
    "test-00001": {"c": JPEG, "d": PNG},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", "1")
    write_params(decode=PARAMS)


def run(out: str = "decoded") -> Mapping[str, Any]:
    arguments = f"--shards shards --out {out} --report {out}.json".split()
    return stage.execute(decode, "decode", arguments)


def rows(name: str, out: str = "decoded") -> dict[str, npt.NDArray[np.uint8]]:
    """The images of a decoded shard, [H, W, C] uint8, by key."""
    table = records.read_ipc(Path(out, f"{name}.arrow"))
    tensors: Any = table["image"].combine_chunks()
    keys = map(str, table["key"].to_pylist())
    return dict(zip(keys, tensors.to_numpy_ndarray(), strict=True))


def rejected(out: str = "decoded") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = records.read_parquet(Path(out, "rejected.parquet")).to_pylist()
    return found


@pytest.mark.filterwarnings("ignore:.*:UserWarning:PIL")
def test_every_format_comes_through_the_line_as_pillow_sees_it() -> None:
    upright = {
        name.replace(" ", "_"): data
        for name, data in pictures.files().items()
        if "exif" not in name  # these lie on their side, and another test has them
    }
    write_params(decode=PARAMS, shard={"max_rejected_fraction": 0})
    write_cleaned(upright)
    stage.execute(shard, "shard", ["--manifest", "manifest", "--raw", "raw", "--out", "shards"])
    report = run()
    assert report["samples_kept"] == len(upright)
    found: dict[str, npt.NDArray[np.uint8]] = {}
    for path in Path("decoded").glob("*-*.arrow"):
        found |= rows(path.stem)
    for name, data in upright.items():
        seen = pictures.as_pillow_sees(data).astype(int)
        is_lossy = "jpeg" in name or name.startswith("webp")
        np.testing.assert_allclose(found[name].astype(int), seen, atol=2 if is_lossy else 0)


def test_each_of_many_shards_gets_its_own_rows() -> None:
    sizes = np.random.default_rng(1).integers(1, 5, 120)
    names = [f"{SPLITS[at % 3]}-{at:05d}" for at in range(120)]
    write_shards(
        {
            name: {f"{name}/{n}": (JPEG, PNG)[n % 2] for n in range(size)}
            for name, size in zip(names, sizes, strict=True)
        }
    )
    assert run()["num_shards"] == 120
    for name, size in zip(names, sizes, strict=True):
        assert list(rows(name)) == [f"{name}/{n}" for n in range(size)]


def test_a_shard_keeps_the_contract_with_the_reader() -> None:
    write_shards(GOOD)
    run()
    with pa.OSFile("decoded/train-00000.arrow", "rb") as file, pa.ipc.open_file(file) as reader:
        assert reader.num_record_batches == 1
        batch = reader.get_batch(0)
    assert [(field.name, field.nullable) for field in batch.schema] == [
        ("image", False),
        ("key", False),
        ("label", False),
        ("crc32c", False),
    ]
    shape = (pictures.HEIGHT, pictures.WIDTH, 3)
    assert batch.schema.field("image").type == pa.fixed_shape_tensor(pa.uint8(), shape)
    assert batch.schema.field("label").type == pa.int32()
    assert batch.schema.field("crc32c").type == pa.uint32()
    keys = batch["key"].to_pylist()
    assert keys == sorted(GOOD["train-00000"])
    assert batch["label"].to_pylist() == [label_of(str(key)) for key in keys]
    images = rows("train-00000")
    assert batch["crc32c"].to_pylist() == [
        google_crc32c.value(images[str(key)].tobytes()) for key in keys
    ]


def test_the_images_of_a_mapped_shard_are_one_run_of_its_bytes() -> None:
    write_shards(GOOD)
    run()
    path = Path("decoded/train-00000.arrow")
    before = pa.total_allocated_bytes()
    table = records.read_ipc(path)
    assert pa.total_allocated_bytes() == before
    chunks: Any = table["image"].chunks
    (pixels,) = [chunk.storage.flatten().to_numpy() for chunk in chunks]
    assert path.read_bytes().count(pixels.tobytes()) == 1


def test_the_index_names_every_shard_and_is_the_version() -> None:
    write_shards(GOOD)
    report = run()
    table = records.read_ipc(Path("decoded/index.arrow"))
    found = table.to_pylist()
    assert [(row["split"], row["bucket"], row["num_rows"]) for row in found] == [
        ("test", 1, 2),
        ("train", 0, 20),
        ("train", 3, 1),
    ]
    for row in found:
        path = Path("decoded", row["shard"])
        assert row["shard"] == f"{row['split']}-{row['bucket']:05d}.arrow"
        assert row["num_bytes"] == path.stat().st_size
        assert row["sha256"] == sha256_file(path)
    told = records.metadata(table.schema)
    assert told["format"] == "1"
    assert told["shape"] == [pictures.HEIGHT, pictures.WIDTH, 3]
    assert told["labels"] == list(LABELS)
    assert told["num_buckets"] == 8
    assert report["dataset_version"] == sha256_file(Path("decoded/index.arrow"))
    assert json.loads(Path("decoded.json").read_text())["splits"] == {"test": 2, "train": 21}


def test_mean_and_std_are_those_of_the_train_split() -> None:
    write_shards(GOOD)
    run()
    told = records.metadata(records.read_ipc(Path("decoded/index.arrow")).schema)
    images = np.stack([*rows("train-00000").values(), *rows("train-00003").values()]) / 255
    np.testing.assert_allclose(told["mean"], images.mean((0, 1, 2)), atol=1e-6)
    np.testing.assert_allclose(told["std"], images.std((0, 1, 2)), atol=1e-6)


def test_without_a_train_split_there_is_no_mean() -> None:
    write_shards({"test-00000": GOOD["test-00001"]})
    run()
    told = records.metadata(records.read_ipc(Path("decoded/index.arrow")).schema)
    assert told["mean"] is None
    assert told["std"] is None


def test_bad_images_are_rows_and_the_rest_of_the_shard_is_unharmed() -> None:
    write_shards(GOOD)
    run("clean")
    bad = {
        "a003b": JPEG[:-2],
        "a007b": b"",
        "a011b": b"no image at all",
        "a012b": PNG[: len(PNG) // 2],
        "zzz": pictures.encode(pictures.picture().quantize(8), "GIF"),
    }
    for path in Path("shards").iterdir():
        path.unlink()
    Path("shards").rmdir()
    write_shards({**GOOD, "train-00000": GOOD["train-00000"] | bad})
    report = run()
    assert report["samples_in"] == 28
    assert report["samples_kept"] == 23
    assert report["rejected"] == {"decode_failed": 5}
    assert [(row["key"], row["path"]) for row in rejected()] == [
        (key, f"train-00000.tar:{key}") for key in sorted(bad)
    ]
    assert {row["reason"] for row in rejected()} == {"decode_failed"}
    assert rejected()[0]["detail"] == (
        "DALI's cpu decoder refuses a JPEG of 48 x 40 pixels, mode RGB"
    )
    assert rejected()[2]["detail"] == (
        "DALI's cpu decoder refuses 15 bytes that no header of an image begins"
    )
    for name in GOOD:
        before, after = Path("clean", f"{name}.arrow"), Path("decoded", f"{name}.arrow")
        assert before.read_bytes() == after.read_bytes()
    assert report["dataset_version"] == sha256_file(Path("clean/index.arrow"))


def test_too_many_bad_images_fail_the_stage() -> None:
    write_params(decode={**PARAMS, "max_rejected_fraction": 0.1})
    write_shards({"train-00000": {"a": JPEG, "b": b"bad", "c": PNG}})
    with pytest.raises(HeadraceError, match="rejected too many") as caught:
        run()
    assert caught.value.where == "params.yaml:decode.max_rejected_fraction"
    assert "train-00000.tar:b" in str(caught.value.found)
    assert not Path("decoded").exists()


def test_a_shard_without_a_good_image_is_not_written() -> None:
    write_shards({"train-00000": {"a": b"bad"}, "train-00001": {"b": JPEG, "c": JPEG}})
    run()
    assert set(bytes_of(Path("decoded"))) == {
        "index.arrow",
        "rejected.parquet",
        "train-00001.arrow",
    }


@pytest.mark.parametrize(("cluster", "num_workers"), [("threads", "3"), ("processes", "2")])
def test_bytes_depend_on_no_worker(
    cluster: str, num_workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = {f"train-{n:05d}": {**GOOD["train-00000"], f"b{n}": b"bad"} for n in range(6)}
    write_params(decode={**PARAMS, "height_px": 17, "width_px": 23})
    write_shards(shards)
    run("one")
    monkeypatch.setenv("HEADRACE_CLUSTER", cluster)
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", num_workers)
    run("other")
    assert bytes_of(Path("one")) == bytes_of(Path("other"))
    assert Path("one.json").read_bytes() == Path("other.json").read_bytes()


def test_one_flipped_bit_in_a_tar_is_told() -> None:
    write_shards(GOOD)
    path = Path("shards/train-00000.tar")
    (row,) = [
        row
        for row in records.read_ipc(Path("shards/index.arrow")).to_pylist()
        if row["key"] == "a007"
    ]
    damaged = bytearray(path.read_bytes())
    damaged[row["offset"] + row["length"] // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(HeadraceError, match="damaged") as caught:
        run()
    assert caught.value.where == "shards/train-00000.tar:a007"
    assert f"{row['crc32c']:08x}" in str(caught.value.expected)
    assert "dvc repro --force --single-item shard" in str(caught.value.fix)
    assert not Path("decoded").exists()


def test_a_tar_that_ends_early_is_told() -> None:
    write_shards(GOOD)
    path = Path("shards/train-00003.tar")
    path.write_bytes(path.read_bytes()[:1600])
    with pytest.raises(HeadraceError, match="damaged") as caught:
        run()
    assert caught.value.where == "shards/train-00003.tar:b"


def test_a_tar_that_is_gone_is_told() -> None:
    write_shards(GOOD)
    Path("shards/train-00003.tar").unlink()
    with pytest.raises(HeadraceError, match="not there") as caught:
        run()
    assert caught.value.where == "shards/train-00003.tar"


def test_without_a_gpu_device_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "num_gpus", lambda: 0)
    write_params(decode={**PARAMS, "device": "gpu"})
    write_shards(GOOD)
    with pytest.raises(HeadraceError, match="on a GPU, and there is none"):
        run()
    assert not Path("decoded").exists()


def test_pixels_held_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = decoder.Decoder.decode

    def note(self: decoder.Decoder, encoded: list[bytes], out: Any) -> Any:
        asked.append(len(encoded))
        return real(self, encoded, out)

    monkeypatch.setattr(decoder.Decoder, "decode", note)
    write_shards({"train-00000": GOOD["train-00000"]}, size=(4096, 4096))
    run("large")
    assert asked == [2] * 10  # two are 32 megapixels
    asked.clear()
    for path in Path("shards").iterdir():
        path.unlink()
    Path("shards").rmdir()
    write_shards({"train-00000": GOOD["train-00000"]})
    run("small")
    assert asked == [8, 8, 4]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_params_set_shape_and_fit(channels: int, fit: str) -> None:
    write_params(
        decode={**PARAMS, "channels": channels, "fit": fit, "height_px": 30, "width_px": 20}
    )
    write_shards({"train-00003": {"b": PNG}})
    report = run()
    assert report["shape"] == (30, 20, channels)
    (image,) = rows("train-00003").values()
    assert image.shape == (30, 20, channels)
    assert (image[0] == 0).all() == (fit == "pad")


@pytest.mark.parametrize(
    ("name", "value"), [("height_px", 0), ("channels", 2), ("device", "tpu"), ("fit", "fill")]
)
def test_params_out_of_range_are_refused(name: str, value: object) -> None:
    write_params(decode={**PARAMS, name: value})
    write_shards(GOOD)
    with pytest.raises(HeadraceError, match=name):
        run()
