"""Starting from weights that were trained before, and leaving some of them as they are.

`pretrained` names a safetensors file of any origin whose tensors have the model's names. What has
another shape there keeps its fresh values: the head, where the classes are others. `freeze` lists
patterns (`stem.*`, `0.*`, `*`) of parameters that do not change; a layer whose parameters are all
frozen keeps its buffers too (BatchNorm's statistics), and acts as in evaluation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import MethodType

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pipelines.core.errors import HeadraceError, did_you_mean

log = logging.getLogger("headrace.train")


def load(model: nn.Module, path: Path) -> None:
    """Take from the safetensors file at `path` what has the name and shape of a tensor of `model`.

    Raises:
        HeadraceError: no such file, or a damaged one; a tensor is not in it, or none fits.
    """
    kept = _read(path)
    own = model.state_dict()
    if missing := [name for name in own if name not in kept]:
        near = did_you_mean(missing[0], kept)
        raise HeadraceError(
            f"The file is of another model: some tensors are not in it.{near}",
            where=str(path),
            expected=", ".join(missing),
            found=", ".join(kept),
            fix="name a file of this model under train.pretrained in params.yaml, or null",
        )
    fitting = {name: kept[name] for name in own if kept[name].shape == own[name].shape}
    fresh = [f"{name} ({_sizes(kept[name], own[name])})" for name in own if name not in fitting]
    if not any(name in fitting for name, _ in model.named_parameters()):
        raise HeadraceError(
            "No weight of the file has the shape that the model has.",
            where=str(path),
            found=", ".join(fresh),
            fix="name a file of this model under train.pretrained in params.yaml, or null",
        )
    model.load_state_dict(fitting, strict=False)
    log.info("began with %d of %d tensors of %s", len(fitting), len(own), path)
    if fresh:
        log.info("of another shape there, and so fresh: %s", ", ".join(fresh))


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Have the parameters whose name matches one of `patterns` stay as they are.

    Raises:
        HeadraceError: a pattern matches none.
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        matching = [name for name in names if fnmatchcase(name, pattern)]
        if not matching:
            raise HeadraceError(
                f"No parameter matches {pattern!r}.{did_you_mean(pattern, names)}",
                where="params.yaml: train.freeze",
                expected="patterns of " + ", ".join(names),
                found=pattern,
            )
        for name in matching:
            model.get_parameter(name).requires_grad_(False)
    for module in _frozen(model):
        module.eval()
        # Whoever puts the model into training mode leaves this part of it.
        module.train = MethodType(_stay, module)  # type: ignore[method-assign]


def _read(path: Path) -> Mapping[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise HeadraceError(
            "The weights to begin with cannot be read.",
            where=f"params.yaml: train.pretrained: {path}",
            expected="a safetensors file",
            found=f"{type(error).__name__}: {error}",
            fix="dvc pull, where it is tracked; null trains from fresh weights",
        ) from None


def _sizes(theirs: Tensor, ours: Tensor) -> str:
    return f"{list(theirs.shape)}, here {list(ours.shape)}"


def _frozen(model: nn.Module) -> Iterator[nn.Module]:
    """Modules that have parameters, all of them frozen."""
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            yield module


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:  # noqa: ARG001, FBT001, FBT002 - as nn.Module's
    return module
