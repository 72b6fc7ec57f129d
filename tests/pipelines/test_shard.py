"""Kept samples become tars that hold what came, and an index that finds it."""

import io
import json
import tarfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
import webdataset
from PIL import Image

from pipelines import shard
from pipelines.core import records, stage
from pipelines.core.errors import HeadraceError
from pipelines.core.images.transcode import decodable
from pipelines.core.samples import raw
from tests import pictures
from tests.packed import LABELS, bytes_of, label_of, split_of, write_cleaned, write_params

FILES = {name.replace(" ", "_"): data for name, data in pictures.files().items()}
FILES |= {f"größe/写真_{number}": FILES["jpeg"] for number in range(4)}
TURNED = Counter(
    {
        "AVIF": 3,  # all
        "GIF": 3,  # all
        "TIFF": 7,  # bilevel twice, palette, both alphas, CMYK, YCbCr
        "WEBP": 2,  # animated; lossless with EXIF
    }
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", "1")
    write_params(shard={"max_rejected_fraction": 0})


def run(out: str = "shards") -> Mapping[str, Any]:
    arguments = f"--manifest manifest --raw raw --out {out} --report {out}.json".split()
    return stage.execute(shard, "shard", arguments)


def index(out: str = "shards") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = records.read_ipc(Path(out, "index.arrow")).to_pylist()
    return rows


def members(out: str = "shards") -> dict[str, bytes]:
    found = {}
    for path in Path(out).glob("*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                found[member.name] = file.read()
    return found


def test_every_sample_is_there_with_label_and_origin() -> None:
    write_cleaned(FILES)
    run()
    found = members()
    assert len(found) == 3 * len(FILES)
    by_key = {name.partition(".")[0] for name in found}
    assert by_key == set(FILES)
    for key in FILES:
        assert found[f"{key}.cls"] == b"%d" % label_of(key)
        told = json.loads(found[f"{key}.json"])
        assert told["label"] == LABELS[label_of(key)]
        assert told["path"] in (f"{key}.bin", f"files.zip/{key}.bin")
        assert list(told) == sorted(told)


def test_images_that_dali_decodes_are_stored_as_they_came() -> None:
    write_cleaned(FILES)
    run()
    found = members()
    endings = {"jpeg": "jpg", "png": "png", "bmp": "bmp", "webp": "webp", "tiff": "tif"}
    for key, ending in endings.items():
        assert found[f"{key}.{ending}"] == FILES[key]


def test_other_images_become_png_and_are_counted() -> None:
    write_cleaned(FILES)
    report = run()
    assert report["transcoded_to_png"] == TURNED
    with Image.open(io.BytesIO(members()["gif.png"])) as png:
        assert png.format == "PNG"


def test_the_index_finds_every_image() -> None:
    write_cleaned(FILES)
    run()
    rows = index()
    found = members()
    assert {row["key"] for row in rows} == set(FILES)
    for row in rows:
        data = Path("shards", row["shard"]).read_bytes()
        image = data[row["offset"] : row["offset"] + row["length"]]
        assert image in [found.get(f"{row['key']}.{ext}") for ext in ENDINGS]
        assert row["crc32c"] == google_crc32c.value(image)
        assert row["label"] == label_of(row["key"])
        assert row["split"] == split_of(row["key"])
        assert row["shard"] == f"{row['split']}-{row['bucket']:05d}.tar"


ENDINGS = ("jpg", "png", "bmp", "webp", "tif", "ppm")


def test_index_and_tars_are_sorted() -> None:
    write_cleaned(FILES)
    run()
    places = [(row["split"], row["bucket"], row["key"]) for row in index()]
    assert places == sorted(places)
    for path in Path("shards").glob("*.tar"):
        with tarfile.open(path) as tar:
            names = tar.getnames()
        keys = [name.partition(".")[0] for name in names]
        assert keys == sorted(keys)
    metadata = records.metadata(records.read_ipc(Path("shards/index.arrow")).schema)
    assert metadata == {"labels": list(LABELS), "num_buckets": 2}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves it open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_decodes_what_was_packed() -> None:
    write_cleaned({key: FILES[key] for key in ("jpeg", "png", "webp", "bmp", "tiff", "gif")})
    run()
    urls = sorted(map(str, Path("shards").glob("*.tar")))
    dataset = webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)
    seen = {sample["__key__"]: sample for sample in dataset}
    assert set(seen) == {"jpeg", "png", "webp", "bmp", "tiff", "gif"}
    assert seen["jpeg"]["jpg"] == FILES["jpeg"]
    assert seen["gif"]["cls"] == b"%d" % label_of("gif")


@pytest.mark.parametrize(("cluster", "num_workers"), [("threads", "2"), ("processes", "2")])
def test_bytes_depend_on_no_worker(
    cluster: str, num_workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cleaned(FILES, num_buckets=4)
    run("one")
    monkeypatch.setenv("HEADRACE_CLUSTER", cluster)
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", num_workers)
    run("other")
    assert bytes_of(Path("one")) == bytes_of(Path("other"))
    assert Path("one.json").read_bytes() == Path("other.json").read_bytes()


def test_the_report_adds_up() -> None:
    write_cleaned(FILES)
    report = run()
    tars = list(Path("shards").glob("*.tar"))
    assert report["samples_in"] == report["samples_kept"] == len(FILES)
    assert report["samples_rejected"] == 0
    assert report["splits"] == Counter(map(split_of, FILES))
    assert report["num_shards"] == len(tars)
    assert report["num_bytes"] == sum(path.stat().st_size for path in tars)
    assert records.read_parquet(Path("shards/rejected.parquet")).num_rows == 0


def test_only_tars_with_samples_are_written() -> None:
    write_cleaned({"jpeg": FILES["jpeg"]}, num_buckets=8)
    run()
    names = {path.stem for path in Path("shards").iterdir()} - {"index", "rejected"}
    assert len(names) == 1
    assert set(bytes_of(Path("shards"))) == {
        "index.arrow",
        "rejected.parquet",
        *(f"{name}.{ext}" for name in names for ext in ("tar", "idx")),
    }


@pytest.mark.parametrize("change", ["edited", "longer", "removed"])
def test_raw_data_that_changed_are_noticed(change: str) -> None:
    write_cleaned({"a": FILES["png"], "b": FILES["jpeg"]})
    path = Path("raw/a.bin")
    match change:
        case "edited":
            path.write_bytes(FILES["png"][:-1] + b"x")
        case "longer":
            path.write_bytes(FILES["png"] + b"x")
        case "removed":
            path.unlink()
    with pytest.raises(HeadraceError, match="changed after they were cleaned") as caught:
        run()
    assert caught.value.where == "raw/a.bin"
    assert "dvc repro" in str(caught.value.fix)
    assert not Path("shards").exists()


def test_an_image_of_which_no_png_can_be_made_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_for_gif(data: bytes, image_format: str, mode: str, num_frames: int) -> object:
        if image_format == "GIF":
            raise OSError("a detail that may differ between machines")
        return decodable(data, image_format, mode, num_frames)

    monkeypatch.setattr(shard, "decodable", fail_for_gif)
    write_params(shard={"max_rejected_fraction": 0.5})
    write_cleaned({"a": FILES["gif"], "b": FILES["jpeg"]})
    report = run()
    assert report["rejected"] == {"unreadable": 1}
    assert report["samples_kept"] == 1
    (row,) = records.read_parquet(Path("shards/rejected.parquet")).to_pylist()
    assert row == {
        "key": "a",
        "path": "a.bin",
        "reason": "unreadable",
        "detail": "no PNG can be made of this GIF: OSError",
        "stage": "shard",
    }
    write_params(shard={"max_rejected_fraction": 0})
    with pytest.raises(HeadraceError, match="rejected too many"):
        run("strict")


def test_a_missing_manifest_is_an_error() -> None:
    write_cleaned(FILES, num_buckets=4)
    Path("manifest/00002.parquet").unlink()
    with pytest.raises(HeadraceError, match="not all there") as caught:
        run()
    assert caught.value.found == "3 files"
    for path in Path("manifest").iterdir():
        path.unlink()
    with pytest.raises(HeadraceError, match="no manifest to pack"):
        run()


def test_manifests_of_two_datasets_are_an_error() -> None:
    write_cleaned(FILES)
    path = Path("manifest/00001.parquet")
    table = records.with_metadata(
        records.read_parquet(path), {"labels": ["other"], "num_buckets": 2}
    )
    records.write_parquet(path, table)
    with pytest.raises(HeadraceError, match="not of one dataset"):
        run()


def test_raw_is_read_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grew to any size is refused unread."""
    asked = {}
    real = raw.read

    def read(root: Path, container: str, member: str, max_bytes: int) -> bytes:
        asked[member or container] = max_bytes
        return real(root, container, member, max_bytes)

    monkeypatch.setattr(raw, "read", read)
    write_cleaned({"a": FILES["png"], "b": FILES["jpeg"]})
    run()
    assert asked == {"a.bin": len(FILES["png"]), "b.bin": len(FILES["jpeg"])}
