"""WebDataset tars that are the same bytes for the same samples, with the index that DALI reads.

Written by webdataset's own `TarWriter`, held to USTAR with every timestamp, owner and mode fixed.
`webdataset`, GNU tar, Python's tarfile and DALI's webdataset reader all read them. The `.idx`
beside a tar is what DALI's `wds2idx` would write, made while writing instead of by reading the
tar again.

Costs about 0.1 ms a sample besides copying its bytes. Nothing is held in memory but the lines of
the index. Importing webdataset imports torch where that is installed, which takes a second.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import webdataset

BLOCK_BYTES = 512
IDX_VERSION = "v1.2"
MAX_NAME_BYTES = 100  # what a USTAR header holds without its prefix field, which not all read


class Member(NamedTuple):
    """Where the data of a tar member lies, in bytes from the start of the tar."""

    offset: int
    length: int


class TarShard:
    """A tar and its `.idx`, open for writing; a context manager.

    On leaving the context both files are complete. Left by an exception, neither is there.
    """

    def __init__(self, path: Path) -> None:
        """Start writing at `path`, which ends in `.tar`; the index goes beside it."""
        self._path = path
        self._lines: list[str] = []
        self._file = path.open("wb")
        self._writer = webdataset.TarWriter(
            self._file, encoder=False, mtime=0, user="headrace", group="headrace", mode=0o444
        )
        # TarWriter takes a `format` and does not pass it on (webdataset 1.0.2): tarfile would write
        # pax headers for names that are not ASCII, in the encoding of the locale.
        self._writer.tarstream.format = tarfile.USTAR_FORMAT
        self._writer.tarstream.encoding = "utf-8"

    @property
    def name(self) -> str:
        """File name of the tar."""
        return self._path.name

    def add(self, key: str, components: Mapping[str, bytes]) -> dict[str, Member]:
        """Append one sample, its components sorted by extension.

        Args:
            key: without a dot; keys must come in ascending order for the tar to be sorted.
            components: bytes by extension, such as `{"jpg": ..., "cls": b"3"}`.

        Returns:
            Where each component's data lies, by extension.
        """
        names = {extension: f"{key}.{extension}" for extension in sorted(components)}
        assert all(len(name.encode()) <= MAX_NAME_BYTES for name in names.values()), key
        members = {}
        header = self._writer.tarstream.offset
        for extension in names:
            length = len(components[extension])
            members[extension] = Member(header + BLOCK_BYTES, length)
            header += BLOCK_BYTES + -(-length // BLOCK_BYTES) * BLOCK_BYTES
        self._writer.write({"__key__": key, **components})
        assert self._writer.tarstream.offset == header, "webdataset wrote something else"
        self._lines.append(
            " ".join(
                f"{name} {members[name].offset} {members[name].length} {names[name]}"
                for name in names
            )
        )
        return members

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()
        self._file.close()
        if kind is not None:
            self._path.unlink()
            return
        lines = (f"{IDX_VERSION} {len(self._lines)}", *self._lines)
        text = "".join(f"{line}\n" for line in lines)
        self._path.with_suffix(".idx").write_text(text, encoding="utf-8")
