"""What a run reports of itself: sums over an epoch, the history of all, DVCLive's files.

The history is part of a checkpoint, and all of it is written at the end: DVC removes the outs of
an interrupted run, so a resumed one has to tell the whole story again. Every figure is a function
of data, params and code: durations and speeds go to the log.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Sums:
    """Sums over the steps of an epoch so far.

    The summands are exact and come in the order of steps, on any number of ranks.
    """

    num_samples: int = 0
    loss: float = 0.0
    num_correct: int = 0

    def add(self, num_samples: int, mean_loss: float, num_correct: int) -> None:
        """Add one step."""
        self.num_samples += num_samples
        self.loss += mean_loss * num_samples
        self.num_correct += num_correct

    def means(self) -> dict[str, float]:
        """Mean loss and accuracy a sample; NaN of nothing."""
        num = self.num_samples or float("nan")
        return {"loss": self.loss / num, "accuracy": self.num_correct / num}


@dataclass
class History:
    """Metrics of the finished epochs, and sums of the one that is under way."""

    epochs: list[dict[str, float]] = field(default_factory=list)
    current: Sums = field(default_factory=Sums)

    def end_epoch(self, learning_rate: float, val: dict[str, float] | None) -> dict[str, float]:
        """Close the epoch that is under way and return its metrics, by DVCLive's names."""
        row = {f"train/{name}": value for name, value in self.current.means().items()}
        row |= {f"val/{name}": value for name, value in (val or {}).items()}
        row["learning_rate"] = learning_rate
        self.epochs.append(row)
        self.current = Sums()
        return row

    @property
    def best_epoch(self) -> int:
        """The first of those with the best val accuracy, from 0; the last where there is no val."""
        if not self.epochs or "val/accuracy" not in self.epochs[0]:
            return len(self.epochs) - 1
        return max(range(len(self.epochs)), key=lambda it: (self.epochs[it]["val/accuracy"], -it))

    def state(self) -> dict[str, Any]:
        """JSON-able, and exact: JSON keeps all bits of a float."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> History:
        """The history as it stood when `state` was taken."""
        return cls(epochs=[dict(row) for row in state["epochs"]], current=Sums(**state["current"]))


def write(history: History, folder: Path) -> None:
    """Write `metrics.json` (the last epoch) and `plots/metrics/**.tsv` (all epochs)."""
    from dvclive.live import Live  # noqa: PLC0415 - half a second, for rank 0 only

    with Live(str(folder), dvcyaml=None, save_dvc_exp=False, report=None) as live:
        for epoch, row in enumerate(history.epochs, start=1):
            live.step = epoch
            for name, value in sorted(row.items()):  # the order after a resume, which JSON sorted
                live.log_metric(name, value)
            live.make_summary()
