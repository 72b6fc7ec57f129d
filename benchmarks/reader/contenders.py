"""The readers that are compared: each turns a decoded dataset into an endless stream of batches.

A contender is a function of the decoded dataset and a folder of its own, in which it may write the
data in its own form once. It yields once a batch of 256 shuffled samples, with the images as one
uint8 array or tensor of the process that asked for them. Each is used with the settings that made
it fastest on two cores, which its docstring names.

Those of `PEERS` run in .venv-bench and import what they need when they are called; nothing here may
be imported that only Headrace's environment has.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

BATCH_SIZE = 256
Contender = Callable[["Data", Path], Iterator[Any]]


class Data(NamedTuple):
    """A decoded dataset."""

    folder: Path
    shape: tuple[int, int, int]
    num_samples: int

    def shards(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int32]]]:
        """Images [n, H, W, C] and labels [n] of one shard after another."""
        for path in sorted(self.folder.glob("train-*.arrow")):
            batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
            column: Any = batch.column("image")
            storage = column.storage if isinstance(column, pa.ExtensionArray) else column
            images = storage.flatten().to_numpy().reshape(-1, *self.shape)
            yield images, batch.column("label").to_numpy()


def once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Have `write` fill a folder, unless that was done before."""
    if not (folder / ".done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)
        (folder / ".done").touch()
    return folder


def flat_file(data: Data, folder: Path) -> NDArray[np.uint8]:
    """All images in one file, mapped into memory, [N, H, W, C]."""

    def write(target: Path) -> None:
        with (target / "images").open("wb") as file:
            for images, _ in data.shards():
                file.write(images.tobytes())

    path = once(folder, write) / "images"
    return np.memmap(path, np.uint8, "r").reshape(data.num_samples, *data.shape)


def memmap(data: Data, folder: Path) -> Iterator[Any]:
    """One memory map in torch's DataLoader: num_workers=0, whole batches by fancy indexing."""
    import torch.utils.data as torch_data  # noqa: PLC0415

    images = flat_file(data, folder)

    class Rows(torch_data.Dataset[Any]):
        def __len__(self) -> int:
            return data.num_samples

        def __getitems__(self, indices: list[int]) -> Any:
            return images[np.sort(indices)]

    def as_tensor(batch: Any) -> Any:
        return torch_data.default_convert(batch)

    while True:
        yield from torch_data.DataLoader(
            Rows(), BATCH_SIZE, shuffle=True, drop_last=True, collate_fn=as_tensor
        )


def hugging_face(data: Data, folder: Path) -> Iterator[Any]:
    """Hugging Face datasets in the arrow format, whole batches by index, num_workers=0."""
    datasets = import_module("datasets")

    num_bytes = int(np.prod(data.shape))
    schema = pa.schema([("image", pa.list_(pa.uint8(), num_bytes)), ("label", pa.int32())])

    def write(target: Path) -> None:
        for number, (images, labels) in enumerate(data.shards()):
            column = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), num_bytes)
            with pa.ipc.new_stream(str(target / f"{number:03d}.arrow"), schema) as out:
                out.write_table(pa.table([column, pa.array(labels)], schema=schema), 1024)

    paths = sorted(once(folder, write).glob("*.arrow"))
    whole = datasets.concatenate_datasets(
        [datasets.Dataset.from_file(str(path)) for path in paths]
    ).with_format("arrow")
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(data.num_samples)
        for start in range(0, data.num_samples - BATCH_SIZE + 1, BATCH_SIZE):
            table = whole[np.sort(order[start : start + BATCH_SIZE])]
            column = table.column("image").combine_chunks()
            yield column.flatten().to_numpy().reshape(-1, *data.shape)


def litdata(data: Data, folder: Path) -> Iterator[Any]:
    """LitData: chunks of 64 MB, StreamingDataLoader with num_workers=0."""
    import torch  # noqa: PLC0415

    lit = import_module("litdata")
    writing = import_module("litdata.streaming.writer")

    def write(target: Path) -> None:
        writer = writing.BinaryWriter(str(target), chunk_bytes="64MB")
        index = 0
        for images, labels in data.shards():
            for image, label in zip(images, labels, strict=True):
                writer[index] = (torch.from_numpy(image.copy()), int(label))
                index += 1
        writer.done()
        writer.merge(1)

    dataset = lit.StreamingDataset(str(once(folder, write)), shuffle=True, drop_last=True)
    while True:
        for images, _ in lit.StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=0):
            yield images


def mosaicml(data: Data, folder: Path) -> Iterator[Any]:
    """MosaicML Streaming: MDS shards of 64 MB, DataLoader with num_workers=2."""
    streaming = import_module("streaming")
    from torch.utils.data import DataLoader  # noqa: PLC0415

    def write(target: Path) -> None:
        height, width, channels = data.shape
        columns = {"image": f"ndarray:uint8:{height},{width},{channels}", "label": "int"}
        out = str(target / "mds")
        with streaming.MDSWriter(out=out, columns=columns, size_limit=1 << 26) as writer:
            for images, labels in data.shards():
                for image, label in zip(images, labels, strict=True):
                    writer.write({"image": image, "label": int(label)})

    local = str(once(folder, write) / "mds")
    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=local, shuffle=True, batch_size=BATCH_SIZE)
    while True:
        for batch in DataLoader(dataset, BATCH_SIZE, num_workers=2, drop_last=True):
            yield batch["image"]


def webdataset(data: Data, folder: Path) -> Iterator[Any]:
    """webdataset: tars of raw bytes, shuffle buffer of 1,000, WebLoader with num_workers=2."""
    wds = import_module("webdataset")

    def write(target: Path) -> None:
        for number, (images, labels) in enumerate(data.shards()):
            with tarfile.open(target / f"{number:03d}.tar", "w") as tar:
                for row, (image, label) in enumerate(zip(images, labels, strict=True)):
                    body = image.tobytes()
                    for name, content in (("bin", body), ("cls", str(label).encode())):
                        info = tarfile.TarInfo(f"{row:07d}.{name}")
                        info.size = len(content)
                        tar.addfile(info, io.BytesIO(content))

    urls = [str(path) for path in sorted(once(folder, write).glob("*.tar"))]

    def as_array(sample: dict[str, bytes]) -> NDArray[np.uint8]:
        return np.frombuffer(sample["bin"], np.uint8).reshape(data.shape)

    dataset = (
        wds.WebDataset(urls, shardshuffle=len(urls))
        .shuffle(1000)
        .map(as_array)
        .batched(BATCH_SIZE, partial=False, collation_fn=np.stack)
    )
    while True:
        yield from wds.WebLoader(dataset, batch_size=None, num_workers=2)


def grain(data: Data, folder: Path) -> Iterator[Any]:
    """Grain: MapDataset over a memory map, 2 threads, 64 batches of read-ahead."""
    library = import_module("grain")

    images = flat_file(data, folder)
    dataset = library.MapDataset.source(images).shuffle(seed=0).repeat().batch(BATCH_SIZE)
    yield from dataset.to_iter_dataset(library.ReadOptions(num_threads=2, prefetch_buffer_size=64))


PEERS: dict[str, Contender] = {
    "memmap in a DataLoader": memmap,
    "Hugging Face datasets": hugging_face,
    "LitData": litdata,
    "MosaicML Streaming": mosaicml,
    "webdataset": webdataset,
    "Grain": grain,
}


def settings(contender: Contender) -> str:
    """What its docstring says."""
    return json.dumps((contender.__doc__ or "").partition(":")[2].strip() or contender.__doc__)
