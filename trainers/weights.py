"""The weights file: safetensors, with what is needed to use it written inside.

`model.safetensors` alone rebuilds the model: its metadata names the architecture, the input, the
classes, the normalisation, and where it comes from (data, params, code, environment, chain of
steps), wherever it is copied. No pickle is read or written. Equal weights with equal metadata are
equal bytes: safetensors orders the tensors itself, but metadata of several keys comes out in an
order that changes from process to process, so everything stands in one key, as sorted JSON.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipelines.core.errors import HeadraceError

METADATA_KEY = "headrace"
_DIGEST = "tensors_sha256"
_FIX = "dvc repro train (or dvc pull, where the weights were pushed)"


@dataclass(frozen=True)
class About:
    """What a weights file says about itself."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    model: str
    """A name of `trainers.models`, or `module:callable`."""
    shape: tuple[int, int, int]
    """[H, W, C] of the uint8 images that it takes."""
    labels: tuple[str, ...]
    """Class names, in the order of the model's outputs."""
    dataset_version: str
    """SHA-256 of the decoded index that it was trained on."""
    mean: tuple[float, ...]
    """Subtracted from every channel of an image in 0..1."""
    std: tuple[float, ...]
    """Divides every channel after that."""
    params: dict[str, Any]
    """The params of the run, those that decide the weights."""
    seeds: dict[str, int]
    """Of everything that was drawn."""
    code: dict[str, str]
    """Of the run, as `trainers.lineage.code` tells it."""
    environment: dict[str, Any]
    """As `trainers.environment.environment` tells it."""
    chain: dict[str, Any]
    """Digest and number of steps of `trainers.chain`."""


def host_copy(
    tensors: Mapping[str, Tensor], reused: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Own, contiguous copies in CPU memory, in the order of `tensors`.

    Own memory for each: safetensors refuses tensors that share storage, as tied weights do.

    Args:
        tensors: what to copy.
        reused: copies made before, whose memory is taken where it fits.
    """
    copies = {}
    for name, tensor in tensors.items():
        own = (reused or {}).get(name)
        if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
            # Pinned, a copy from a GPU takes a fraction of the time.
            own = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        copies[name] = own.copy_(tensor.detach())
    return copies


def write(path: Path, tensors: Mapping[str, Tensor], about: About) -> None:
    """Write a weights file; the bytes are a function of the arguments alone."""
    copies = host_copy(tensors)
    values = asdict(about) | {_DIGEST: weights_sha256(copies)}
    text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)  # what the umask leaves of it
    save_file(copies, path, metadata={METADATA_KEY: text})
    path.chmod(mode)  # safetensors lets only the owner read


def read(path: Path, *, must_be_sound: bool = True) -> tuple[About, dict[str, Tensor]]:
    """Read a weights file: what it says about itself, and its tensors in CPU memory.

    Args:
        path: the file.
        must_be_sound: whether to compare the tensors with the SHA-256 that the file has of them.

    Raises:
        HeadraceError: no such file, a damaged one, or one that Headrace did not write.
    """
    with _opened(path) as file:
        # Not a dict: it has no iterator.
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about, expected = _metadata(file, path)
    found = weights_sha256(tensors) if must_be_sound else expected
    if found != expected:
        raise HeadraceError(
            "The weights file is damaged: its tensors are not those that were written.",
            where=str(path),
            expected=f"{_DIGEST} {expected}",
            found=found,
            fix=_FIX,
        )
    return about, tensors


def read_about(path: Path) -> About:
    """What a weights file says about itself, without reading the tensors; raises as `read`."""
    with _opened(path) as file:
        return _metadata(file, path)[0]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise HeadraceError("There are no weights to read.", where=str(path), fix=_FIX)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise HeadraceError(
            "The weights file is damaged.", where=str(path), found=str(error), fix=_FIX
        ) from error


def _metadata(file: Any, path: Path) -> tuple[About, str]:
    """What the file says about itself, and the SHA-256 that it has of its tensors."""
    text = (file.metadata() or {}).get(METADATA_KEY, "")
    try:
        values = TypeAdapter(dict[str, Any]).validate_json(text)
        expected = str(values.pop(_DIGEST, "none"))
        return TypeAdapter(About).validate_python(values), expected
    except ValidationError as error:
        raise HeadraceError(
            "The weights file does not say what model it holds.",
            where=f"{path}, safetensors metadata key {METADATA_KEY!r}",
            expected="a file written by the stage train",
            found="; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'metadata'}: {fault['msg']}"
                for fault in error.errors()
            ),
            fix=_FIX,
        ) from error


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of names, hexadecimal.

    Unlike the file's own SHA-256 it does not depend on the container or its metadata: two runs have
    equal weights if and only if these are equal.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        head = json.dumps([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
        digest.update(f"{head}\n".encode())
        # A flat view as bytes: numpy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def require_same_data(what: str, *, theirs: str, ours: str, where: Path, fix: str) -> None:
    """Refuse weights of other data.

    Args:
        what: `model` or `checkpoint`.
        theirs: the dataset version that it was trained on.
        ours: the dataset version at hand.
        where: the file or folder of the model or checkpoint.
        fix: the command that mends it.

    Raises:
        HeadraceError: the two versions differ; names both.
    """
    if theirs != ours:
        raise HeadraceError(
            f"The {what} was trained on another version of the dataset.",
            where=str(where),
            expected=f"dataset version {ours} (the data at hand)",
            found=f"dataset version {theirs} (in the {what})",
            fix=fix,
        )
