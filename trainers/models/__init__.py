"""Models by name: ours, one file a family, or the user's own as `module:callable`.

A model maps [B, C, H, W] float to logits [B, num_classes]. Its builder is called with the shape of
a decoded image, (H, W, C), and the number of classes: `def small(shape: tuple[int, int, int],
num_classes: int) -> nn.Module`. A file of the user's own anywhere in the repository does; name it
    among the deps of `train` and `evaluate` in dvc.yaml, so that a change of it trains anew.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from pipelines.core.errors import HeadraceError, did_you_mean
from trainers.models.resnet import resnet18, resnet50
from trainers.models.small import small
from trainers.models.vit import vit_s

Shape: TypeAlias = tuple[int, int, int]  # (H, W, C)
Builder: TypeAlias = Callable[[Shape, int], nn.Module]

BUILDERS: dict[str, Builder] = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "small": small,
    "vit_s": vit_s,
}


def build(name: str, shape: Shape, num_classes: int) -> nn.Module:
    """Build the model `name` on the CPU, in training mode.

    Its weights are drawn from torch's default generator.

    Args:
        name: one of `BUILDERS`, or `module:callable`.
        shape: (H, W, C) of a decoded image.
        num_classes: logits a sample.

    Raises:
        HeadraceError: no such model, its module does not import, or it returns something else than
        [B, num_classes] logits.
    """
    builder = _imported(name) if ":" in name else BUILDERS.get(name)
    if builder is None:
        raise HeadraceError(
            f"There is no model {name!r}.{did_you_mean(name, BUILDERS)}",
            where="params.yaml: train.model",
            expected=f"{', '.join(sorted(BUILDERS))}, or your own as module:callable",
            found=name,
        )
    try:
        model = builder(shape, num_classes)
    except Exception as error:
        raise _broken(name, f"{name} raised {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise _broken(name, f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
    _check_output(model, name, shape, num_classes)
    return model


def modules(name: str) -> tuple[str, ...]:
    """The modules that the model `name` adds to the code of a run: the user's own, or none."""
    return (name.partition(":")[0],) if ":" in name else ()


def _imported(name: str) -> Builder:
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise _broken(
            name, f"importing {module_name!r} raised {type(error).__name__}: {error}"
        ) from error
    builder = getattr(module, attribute, None)
    if not callable(builder):
        near = did_you_mean(attribute, dir(module))
        raise _broken(name, f"{module_name} has no callable {attribute!r}.{near}")
    return builder  # type: ignore[no-any-return]


def _check_output(model: nn.Module, name: str, shape: Shape, num_classes: int) -> None:
    """One forward pass over two blank images; changes nothing."""
    height, width, channels = shape
    was_training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits = model.eval()(torch.zeros(2, channels, height, width))
    except Exception as error:
        what = f"its forward pass raised {type(error).__name__}: {error}"
        raise _broken(name, f"{what} (input [2, {channels}, {height}, {width}])") from error
    finally:
        model.train(was_training)
    found = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
    if found != [2, num_classes]:
        raise _broken(name, f"a batch of 2 images gave {found}")


def _broken(name: str, found: str) -> HeadraceError:
    return HeadraceError(
        f"The model {name!r} cannot be used.",
        where="params.yaml: train.model",
        expected="module:callable, called with (H, W, C) and num_classes, that returns a "
        "torch.nn.Module from [B, C, H, W] to logits [B, num_classes]",
        found=found,
    )
