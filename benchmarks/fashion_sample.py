"""Cut `datasets/fashion/sample.zip` from Fashion-MNIST as Debian packages it.

The first 5,000 training and the first 1,000 test images become 28x28 gray PNG files beside a
`labels.csv` (path, label, split). The zip is a function of its input and of the Pillow in
requirements.lock: members sorted, stored as they are, dated 1980. It takes about two seconds.

Run by `make sample`, after `apt-get install dataset-fashion-mnist`.
"""

import argparse
import csv
import gzip
import hashlib
import io
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SOURCE = Path("/usr/share/datasets/fashion-mnist")
TARGET = Path("datasets/fashion/sample.zip")
NUM_IMAGES = {"train": 5000, "test": 1000}

LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
"""Class names by index, from the README of zalandoresearch/fashion-mnist."""

FILES = {"train": "train", "test": "t10k"}
"""How the files of a split begin."""


class Picture(NamedTuple):
    """One row of labels.csv and the file that it names."""

    path: str
    label: str
    split: str
    png: bytes


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of unsigned bytes, of any number of dimensions.

    The format is on the page of the MNIST database: two zero bytes, a type code (8: uint8), the
    number of dimensions, each size as a big-endian 32-bit integer, then the values.

    Raises:
        ValueError: The file is not IDX, holds another type, or has another length than it says.
    """
    raw = gzip.decompress(path.read_bytes())
    start = 4 + 4 * int.from_bytes(raw[3:4])
    shape = np.frombuffer(raw[4:start].ljust(start - 4), ">i4")
    if raw[:3] != b"\x00\x00\x08" or len(raw) != start + shape.prod(dtype=np.int64):
        raise ValueError(f"{path} is not a whole IDX file of unsigned bytes")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def pictures(source: Path, split: str, num_images: int) -> Iterator[Picture]:
    """The first `num_images` of a split, in the order of the source."""
    images = read_idx(source / f"{FILES[split]}-images-idx3-ubyte.gz")  # [N, 28, 28] uint8
    labels = read_idx(source / f"{FILES[split]}-labels-idx1-ubyte.gz")  # [N] uint8
    if min(len(images), len(labels)) < num_images:
        raise ValueError(f"{source} has fewer than {num_images} images of {split}")
    for index in range(num_images):
        path = f"{split}/{index:05d}.png"
        yield Picture(path, LABELS[labels[index]], split, png_bytes(images[index]))


def png_bytes(image: NDArray[np.uint8]) -> bytes:
    """Encode a gray image, [H, W] uint8, without loss."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", compress_level=9)
    return file.getvalue()


def labels_csv(rows: list[Picture]) -> bytes:
    """The table that names path, label and split of every picture."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("path", "label", "split"))
    writer.writerows((row.path, row.label, row.split) for row in rows)
    return table.getvalue().encode()


def write_zip(target: Path, members: Mapping[str, bytes], comment: bytes) -> None:
    """Write a zip whose bytes depend on nothing but the arguments."""
    with zipfile.ZipFile(target, "w") as archive:
        archive.comment = comment
        for name in sorted(members):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix, wherever it is written.
            info.external_attr = 0o100644 << 16
            archive.writestr(info, members[name])


def cut(source: Path, target: Path, num_images: Mapping[str, int], licence: bytes) -> None:
    """Write the zip at `target`; its comment is the licence under which it may be passed on."""
    rows = [row for split in num_images for row in pictures(source, split, num_images[split])]
    members = {row.path: row.png for row in rows} | {"labels.csv": labels_csv(rows)}
    write_zip(target, members, licence)


def main() -> int:
    """Cut the bundled sample and say what the card must state about it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder of the IDX files")
    parser.add_argument("--target", type=Path, default=TARGET, help="zip to write")
    options: Any = parser.parse_args()
    if not options.source.is_dir():
        print(f"{options.source} does not exist: apt-get install dataset-fashion-mnist")
        return 1
    cut(options.source, options.target, NUM_IMAGES, TARGET.with_name("LICENSE").read_bytes())
    data = options.target.read_bytes()
    print(f"{options.target}\nsha256: {hashlib.sha256(data).hexdigest()}\nnum_bytes: {len(data)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
