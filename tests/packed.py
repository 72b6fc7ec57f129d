"""What stands before `shard` and `decode`, for their tests: raw files, manifests, tars."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
from PIL import Image

from pipelines.core import records
from pipelines.core.buckets import bucket_of
from pipelines.core.shards import packed
from pipelines.core.shards.tars import TarShard

LABELS = ("cat", "dog", "owl")
SPLITS = ("train", "val", "test")


def label_of(key: str) -> int:
    """The class of a key: some class, always the same."""
    return hashlib.sha256(key.encode()).digest()[0] % len(LABELS)


def split_of(key: str) -> str:
    """The split of a key: some split, always the same."""
    return SPLITS[hashlib.sha256(key.encode()).digest()[1] % len(SPLITS)]


def write_params(**sections: Mapping[str, Any]) -> None:
    """Write params.yaml into the working folder."""
    Path("params.yaml").write_text(json.dumps(sections))


def write_cleaned(files: Mapping[str, bytes], *, num_buckets: int = 2) -> None:
    """Write `raw/` (half of the files loose, half in a zip) and `manifest/`, as clean leaves it.

    Args:
        files: image files by key.
        num_buckets: a power of two.
    """
    raw, manifest = Path("raw"), Path("manifest")
    raw.mkdir()
    manifest.mkdir()
    rows = []
    with zipfile.ZipFile(raw / "files.zip", "w") as archive:
        for number, key in enumerate(sorted(files)):
            name = f"{key}.bin"
            if number % 2:
                archive.writestr(name, files[key])
                rows.append(_row(key, "files.zip", name, files[key]))
            else:
                (raw / name).parent.mkdir(parents=True, exist_ok=True)
                (raw / name).write_bytes(files[key])
                rows.append(_row(key, name, "", files[key]))
    for bucket in range(num_buckets):
        own = [row for row in rows if bucket_of(row["key"], num_buckets) == bucket]
        table = pa.Table.from_pylist(own, schema=records.MANIFEST)
        table = records.with_metadata(table, {"labels": LABELS, "num_buckets": num_buckets})
        records.write_parquet(manifest / f"{bucket:05d}.parquet", table)


def _row(key: str, container: str, member: str, data: bytes) -> dict[str, Any]:
    with Image.open(io.BytesIO(data)) as image:
        return {
            "key": key,
            "container": container,
            "member": member,
            "label": LABELS[label_of(key)],
            "label_index": label_of(key),
            "split": split_of(key),
            "sha256": hashlib.sha256(data).hexdigest(),
            "num_bytes": len(data),
            "format": "JPEG" if image.format == "MPO" else image.format,
            "width": image.width,
            "height": image.height,
            "mode": image.mode,
            "orientation": image.getexif().get(0x0112, 1),
            "num_frames": getattr(image, "n_frames", 1),
            "brightness": 0.0,
            "contrast": 0.0,
            "sharpness": 0.0,
        }


def write_shards(
    shards: Mapping[str, Mapping[str, bytes]], *, size: tuple[int, int] = (48, 40)
) -> None:
    """Write `shards/` as the stage leaves it, whatever the bytes of the images are.

    Args:
        shards: image files by key, by the stem of the tar: `train-00003`.
        size: width and height to tell of every image.
    """
    folder = Path("shards")
    folder.mkdir()
    rows = []
    for name in sorted(shards):
        split, _, bucket = name.partition("-")
        with TarShard(folder / f"{name}.tar") as tar:
            for key in sorted(shards[name]):
                data = shards[name][key]
                members = tar.add(key, {"jpg": data, "cls": b"%d" % label_of(key), "json": b"{}"})
                rows.append(
                    {
                        "split": split,
                        "bucket": int(bucket),
                        "shard": f"{name}.tar",
                        "key": key,
                        "offset": members["jpg"].offset,
                        "length": members["jpg"].length,
                        "crc32c": google_crc32c.value(data),
                        "label": label_of(key),
                        "width": size[0],
                        "height": size[1],
                    }
                )
    table = pa.Table.from_pylist(rows, schema=packed.INDEX)
    told = {"labels": LABELS, "num_buckets": 8}
    records.write_ipc(folder / "index.arrow", records.with_metadata(table, told))


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
