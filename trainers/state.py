"""All that a run is made of between two steps, and so what a checkpoint has to hold.

Random numbers and the learning rate are functions of the position and so need no place here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from trainers.chain import Chain
from trainers.checkpoint import Loaded
from trainers.divergence import Undone
from trainers.metrics import History
from trainers.reader import order


@dataclass
class State:
    """The state of a run. Equal on all ranks after each step.

    Attributes:
        model: on its device; also its average, in `ema`.
        position: epoch and step (within it) of the next batch, with the data and the seed that
            they are counted in.
        best: the averaged weights of the best epoch, on their device, where they are kept.
        undone: steps that the run went back on, in the order in which it did.
    """

    model: nn.Module
    ema: AveragedModel
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    position: order.State
    chain: Chain = field(default_factory=Chain)
    history: History = field(default_factory=History)
    undone: tuple[Undone, ...] = ()
    best: dict[str, Tensor] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by a name that is stable from run to run; large ones not copied."""
        named = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        named |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        named |= {f"ema.{name}": tensor for name, tensor in self.ema.state_dict().items()}
        for number, entries in self.optimizer.state_dict()["state"].items():
            named |= {
                f"optimizer.{number}.{name}": value
                for name, value in entries.items()
                if isinstance(value, Tensor)
            }
        return named | {f"chain.{name}": tensor for name, tensor in self.chain.tensors().items()}

    def keep_best(self) -> None:
        """The averaged weights, as they are now, are the best ones."""
        self.best = {name: value.clone() for name, value in self.ema.module.state_dict().items()}

    def result(self) -> Mapping[str, Tensor]:
        """The weights that the run is for."""
        return self.best or self.ema.module.state_dict()

    def meta(self, environment: Mapping[str, Any]) -> dict[str, Any]:
        """All that is no tensor, JSON-able, with the environment that it came about in."""
        return {
            "position": asdict(self.position),
            "scaler": self.scaler.state_dict(),
            "chain": self.chain.state(),
            "history": self.history.state(),
            "undone": [asdict(span) for span in self.undone],
            "environment": dict(environment),
        }

    def restore(self, loaded: Loaded) -> None:
        """Become what `loaded` holds.

        Raises:
            HeadraceError: it was made on another version of the dataset.
        """
        position = order.State(**loaded.meta["position"])
        order.check_version(position, self.position.version)
        self.model.load_state_dict(_below(loaded.tensors, "model."))
        self.ema.load_state_dict(_below(loaded.tensors, "ema."))
        self._restore_optimizer(_below(loaded.tensors, "optimizer."))
        self.scaler.load_state_dict(loaded.meta["scaler"])
        self.chain = Chain.from_state(loaded.meta["chain"], _below(loaded.tensors, "chain."))
        self.history = History.from_state(loaded.meta["history"])
        device = next(self.model.parameters()).device
        best = _below(loaded.tensors, "best.")
        self.best = {name: tensor.to(device) for name, tensor in best.items()}
        self.undone = tuple(Undone(**span) for span in loaded.meta["undone"])
        self.position = position

    def _restore_optimizer(self, tensors: Mapping[str, Tensor]) -> None:
        entries: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            entries.setdefault(int(number), {})[name] = tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
