"""What a run did, step by step: small enough to keep, enough to find the first step that differs.

Of every step 16 bytes are kept: a digest of its sample ids and the bits of its loss; of some steps
(`trainers.schedule.Schedule` says which, 32 of a run at most) also the SHA-256 of the weights after
it. All of it is chained into one hash:

    H(0) = SHA-256("headrace chain 2")
    H(n) = SHA-256(H(n-1), step, digest of ids, loss, SHA-256 of weights or nothing)

with the step as int64, the loss as float64, little-endian. Equal hashes mean equal data, losses and
weights; the hash of a file of steps is computed from its rows, so a changed row shows.

Costs two SHA-256 a step, 8 bytes a sample; 16 MB in memory and in every checkpoint at a million
steps.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.core.records import read_parquet, write_parquet

_START: Final = b"headrace chain 2"
_COLUMNS: Final[dict[str, pa.DataType]] = {
    "step": pa.int64(),
    "ids": pa.uint64(),
    "loss": pa.float64(),
    "weights_sha256": pa.string(),
}
_SCHEMA: Final = pa.schema(_COLUMNS)
"""Of `steps.parquet`: one row a step, from 0."""


class Link(NamedTuple):
    """What is kept of a step."""

    ids: int
    """The first 8 bytes of the SHA-256 of its sample ids, see `digest_of_ids`."""
    loss_bits: bytes
    """float64, little-endian."""
    weights: str | None
    """SHA-256 of the model's weights after it; None where it was not taken."""

    @property
    def loss(self) -> float:
        """The mean loss over the global batch."""
        (loss,) = struct.unpack("<d", self.loss_bits)
        return float(loss)


def digest_of_ids(ids: NDArray[np.int64]) -> int:
    """64 bits that name the samples of a global batch and the places that they have in it.

    Args:
        ids: int64 of any shape, in the order that the step defines; padding counts.
    """
    if ids.dtype != np.int64:
        raise TypeError(f"ids must be int64, not {ids.dtype}")
    body = ids.size.to_bytes(8, "little") + ids.astype("<i8").tobytes()
    return int.from_bytes(hashlib.sha256(body).digest()[:8], "little")


class Chain:
    """The steps of a run so far, and the hash over them."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(_START).digest()
        self._ids = array("Q")
        self._losses = array("d")
        self._weights: dict[int, str] = {}

    @property
    def digest(self) -> str:
        """The last hash, hexadecimal."""
        return self._digest.hex()

    @property
    def num_steps(self) -> int:
        """Steps added so far."""
        return len(self._ids)

    def add(self, ids: int, loss: float, weights: str | None = None) -> None:
        """Append the next step.

        Args:
            ids: from `digest_of_ids`.
            loss: all bits of it count.
            weights: their SHA-256 after the step, hexadecimal, where it is taken.
        """
        step = self.num_steps
        body = struct.pack("<qQd", step, ids, loss) + bytes.fromhex(weights or "")
        self._digest = hashlib.sha256(self._digest + body).digest()
        self._ids.append(ids)
        self._losses.append(loss)
        if weights:
            self._weights[step] = weights

    def link(self, step: int) -> Link:
        """What is kept of `step`, from 0."""
        loss = struct.pack("<d", self._losses[step])
        return Link(self._ids[step], loss, self._weights.get(step))

    def summary(self) -> dict[str, Any]:
        """What stands for the whole in a lineage, JSON-able."""
        return {"digest": self.digest, "num_steps": self.num_steps}

    def tensors(self) -> dict[str, Tensor]:
        """The part of the state that grows: [n] int64 and [n] float64, copied."""
        ids = np.array(self._ids, np.uint64).view(np.int64)
        return {
            "ids": torch.from_numpy(ids),
            "losses": torch.from_numpy(np.array(self._losses, np.float64)),
        }

    def state(self) -> dict[str, Any]:
        """The rest of the state, JSON-able."""
        return {"digest": self.digest, "weights": list(self._weights.items())}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Chain:
        """The chain as it stood when `state` and `tensors` were taken."""
        chain = cls()
        chain._digest = bytes.fromhex(state["digest"])
        chain._ids.frombytes(tensors["ids"].numpy().tobytes())
        chain._losses.frombytes(tensors["losses"].numpy().tobytes())
        chain._weights = dict(state["weights"])
        return chain

    def write(self, path: Path) -> None:
        """Write `steps.parquet`; equal chains write equal bytes."""
        steps = range(self.num_steps)
        columns: tuple[Iterable[Any], ...]
        columns = (steps, self._ids, self._losses, map(self._weights.get, steps))
        arrays = [
            pa.array(list(column), kind)
            for column, kind in zip(columns, _COLUMNS.values(), strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=_SCHEMA)
        write_parquet(path, table)

    @classmethod
    def read(cls, path: Path) -> Chain:
        """The chain of a file, its hash computed anew from the rows.

        Raises:
            OSError, ValueError (also Arrow's errors): it is not there, or no such file.
        """
        table = read_parquet(path)
        if not table.schema.equals(_SCHEMA):
            raise ValueError(f"columns {table.schema.names}, not {_SCHEMA.names}")
        chain = cls()
        columns = (table[name].to_pylist() for name in ("ids", "loss", "weights_sha256"))
        for ids, loss, weights in zip(*columns, strict=True):
            chain.add(ids, loss, weights)
        return chain
