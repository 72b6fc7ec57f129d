"""A version of a dataset: which files tell of its samples, what they are, and how to read them.

The MD5 of each file is known before it is read (from DVC's listing, or from the file at hand), so
that what is equal in two versions is never read twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.errors import HeadraceError


@dataclass(frozen=True)
class File:
    """A Parquet file of a version."""

    where: str
    """For people: path and revision."""
    md5: str
    load: Callable[[], bytes]

    def rows(self, columns: list[str]) -> pa.Table:
        """Some columns of it.

        Raises:
            HeadraceError: it cannot be had, or is damaged.
        """
        data = self.load()
        try:
            return pq.ParquetFile(pa.BufferReader(data)).read(columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise HeadraceError(
                "A file of the data is damaged.",
                where=self.where,
                found=str(error).splitlines()[0],
                fix="remove it (in a cache, the object of its MD5), then dvc pull or dvc repro",
            ) from None


@dataclass(frozen=True)
class Version:
    """The samples of a dataset at a revision, or in the workspace.

    Attributes:
        name: the revision as a person calls it, with its commit; or `workspace`.
        dataset: which of `datasets/`.
        digest: the dataset version (SHA-256 of the index of the decoded shards), None if unknown.
        manifest: the files of the last manifest, by bucket.
        rejected: the rejected table of each stage that may reject, in their order.
        late: the stages of those that reject what the last manifest still holds.
        notes: what a person should know, such as that a stage is out of date.
    """

    name: str
    dataset: str
    digest: str | None
    manifest: Mapping[int, File]
    rejected: Mapping[str, File]
    late: frozenset[str]
    notes: tuple[str, ...] = ()
