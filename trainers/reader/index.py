"""The index of a decoded dataset: which shards there are, and the dataset's version.

`decoded/index.arrow` has one row a shard (`pipelines.core.shards.decoded`); the SHA-256 of its
bytes is the *dataset version*. Reading it costs a few milliseconds and about 200 bytes a shard.
"""

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.core.errors import HeadraceError
from pipelines.core.records import metadata
from pipelines.core.shards.decoded import FORMAT, INDEX
from trainers.reader.fetch import fetch_bytes


@dataclass(frozen=True)
class SplitIndex:
    """The shards of one split in storage order, ascending by bucket."""

    split: str
    folder: Path
    names: "pa.ChunkedArray[Any]"  # [S] file names
    num_rows: NDArray[np.int64]  # [S]
    num_bytes: NDArray[np.int64]  # [S] size of each file
    digests: "pa.ChunkedArray[Any]"  # [S] SHA-256 of each file, hex
    first_ids: NDArray[np.int64]  # [S] sample id of each shard's first row

    def path(self, number: int) -> Path:
        """The file of shard `number`, counted in storage order."""
        return self.folder / str(self.names[number])

    def shard_of(self, sample: int) -> int:
        """The number of the shard that a sample id lies in."""
        return int(np.searchsorted(self.first_ids, sample, side="right")) - 1

    @property
    def shards(self) -> tuple[Path, ...]:
        """The files of all shards; with very many of them, ask for single ones by `path`."""
        return tuple(self.path(number) for number in range(len(self.names)))

    @property
    def num_samples(self) -> int:
        """Samples of the split; their ids are 0..num_samples-1."""
        return int(self.num_rows.sum())


@dataclass(frozen=True)
class Index:
    """What `decoded/index.arrow` says."""

    path: Path
    """Of the index; names it, but is no file, where there is a `url`."""
    url: str | None
    """The folder of the index and the shards, where they are behind a URL."""
    version: str
    """SHA-256 of the index's bytes, hex: the dataset version."""
    shape: tuple[int, int, int]
    """Height, width and channels of every image."""
    labels: tuple[str, ...]
    """Class names in class order."""
    mean: tuple[float, ...] | None
    """Mean of each channel over the train split, 0..1; None where it is empty."""
    std: tuple[float, ...] | None
    """Standard deviation, likewise."""
    table: pa.Table
    """`pipelines.core.shards.decoded.INDEX`: one row a shard that has samples."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have samples."""
        return tuple(sorted(str(name) for name in self.table["split"].unique()))

    def split(self, name: str) -> SplitIndex:
        """The shards of a split.

        Raises:
            HeadraceError: it has no samples.
        """
        if name not in self.splits:
            raise HeadraceError(
                f"The split {name!r} has no samples",
                where=str(self.path),
                expected=f"a split with samples: {', '.join(self.splits) or 'there is none'}",
                found=name,
                fix="let samples have it: by the card's split_column, by folders, or by"
                " val_fraction and test_fraction of clean; or set evaluate.split in params.yaml",
            )
        table = self.table
        # A comparison with a scalar would import pandas, which takes half a second.
        is_of_split = pc.match_substring_regex(table["split"], pattern=f"^{re.escape(name)}$")
        rows = table.filter(is_of_split).sort_by("bucket")
        num_rows = as_numpy(rows["num_rows"].combine_chunks())
        return SplitIndex(
            name,
            self.path.parent,
            rows["shard"],
            num_rows,
            as_numpy(rows["num_bytes"].combine_chunks()),
            rows["sha256"],
            np.cumsum(num_rows) - num_rows,
        )


def open_index(source: Path | str) -> Index:
    """Read the index of the decoded dataset in a folder, or behind a URL that fsspec opens.

    Raises:
        HeadraceError: there is none, it is damaged, or it has another format; over a URL also: no
            driver, or no answer.
    """
    url = source.rstrip("/") if isinstance(source, str) else None
    path = Path(source) / "index.arrow"
    try:
        content = path.read_bytes() if url is None else fetch_bytes(url, "index.arrow")
        table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
        table.validate(full=True)
        values = metadata(table.schema)
    except FileNotFoundError:
        raise HeadraceError(
            "There is no decoded dataset here",
            where=str(path) if url is None else f"{url}/index.arrow",
            fix="dvc repro decode" if url is None else "copy datasets/NAME/decoded there",
        ) from None
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(path, url, "an Arrow IPC file", str(error)) from None
    if (found := values.get("format")) != FORMAT:
        raise _unreadable(path, url, f"headrace.format {FORMAT!r}", f"headrace.format {found!r}")
    if not table.schema.equals(INDEX):
        raise _unreadable(path, url, f"columns {INDEX.names}", f"columns {table.schema.names}")
    return _from_values(path, url, hashlib.sha256(content).hexdigest(), values, table)


def as_numpy(array: "pa.Array[Any]") -> NDArray[Any]:
    """An array of numbers without nulls, not copied; `to_numpy` would import pandas."""
    found: NDArray[Any] = np.from_dlpack(array)
    return found


def mend_command(path: Path) -> str:
    """The command that restores a damaged file of a DVC output.

    All three parts are needed. DVC trusts a file whose size and time are unchanged, hence `touch`.
    Where the workspace links into DVC's cache, the cache holds the same damage, and DVC believes
    what is read-only there, hence `chmod`; then it throws the object away and makes it anew.
    Without them `dvc checkout`, and even `dvc repro -f` with hard or symbolic links, bring the
    damage back.
    """
    file = shlex.quote(str(path))
    if not path.suffix:  # Named by its digest, so out of the cache of a bucket: it comes again.
        return f"rm {file}"
    return f"chmod u+w {file} && touch {file} && dvc repro decode"


def _unreadable(path: Path, url: str | None, expected: str, found: str) -> HeadraceError:
    return HeadraceError(
        "The index of the decoded dataset cannot be used",
        where=str(path) if url is None else f"{url}/index.arrow",
        expected=expected,
        found=found,
        fix=mend_command(path) if url is None else "copy datasets/NAME/decoded there once more",
    )


def _from_values(
    path: Path, url: str | None, version: str, values: dict[str, Any], table: pa.Table
) -> Index:
    height, width, channels = values["shape"]
    mean, std = values.get("mean"), values.get("std")
    return Index(
        path,
        url,
        version,
        (height, width, channels),
        tuple(values["labels"]),
        None if mean is None else tuple(mean),
        None if std is None else tuple(std),
        table,
    )
