"""Stage: judge weights on every sample of a split, each exactly once.

Needs the decoded data and the weights file alone, which names its model, classes and normalisation.
Writes what people look at first (`metrics.json`, `plots/`) and what they ask further from
(`predictions.parquet`: one row a sample, with its key).

Guarantees: the same bytes on any number of ranks. Samples stand in storage order in microbatches of
fixed shape, padded and masked at the end, so no sample is ever computed in other company; ranks
only share the microbatches out. Weights of another version of the data are refused.

Costs one forward pass in float32, and memory for `num_samples x num_classes` float32 on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from pipelines.core.errors import HeadraceError
from pipelines.core.params import params
from pipelines.core.report import Report
from pipelines.core.stage import Job
from trainers import launch, mistakes, models, numerics, tables, watchdog, weights
from trainers.normalise import Normalisation
from trainers.reader.loader import Placement, Reader
from trainers.reader.order import evaluation
from trainers.scores import Predictions, score

MAY_BE_URL = ("data",)
WEIGHTS = "model.safetensors"


@params
class Params:
    """What is judged, and in which pieces."""

    split: Literal["train", "val", "test"]
    """The split whose samples are judged."""
    batch_size: Annotated[int, Field(ge=1, le=1 << 20)]
    """Samples of a batch, over all ranks; a multiple of num_logical_workers."""
    num_logical_workers: Annotated[int, Field(ge=1, le=4096)]
    """Microbatches that a batch is cut into; at least the number of ranks."""
    num_threads: Annotated[int, Field(ge=1, le=1024)]
    """Threads of the arithmetic of a rank; another number may change the last bits."""
    num_mistakes: Annotated[int, Field(ge=0, le=1000)]
    """The most confident mistakes that plots/mistakes.png shows."""


def run(job: Job[Params]) -> Report:
    """Judge the weights in `model` on the split of the dataset in `data`; all ranks call it.

    Raises:
        HeadraceError: no such split; no weights, damaged ones, ones of other data or of other code;
            a model that gives no finite number.
    """
    path = job.inputs["model"] / WEIGHTS
    device = numerics.configure("fp32", job.params.num_threads)
    about, tensors = weights.read(path)
    plan = evaluation(
        batch_size=job.params.batch_size, num_logical_workers=job.params.num_logical_workers
    )
    with Reader(job.source("data"), job.params.split, plan, _placement(device)) as reader:
        weights.require_same_data(
            "model",
            theirs=about.dataset_version,
            ours=reader.version,
            where=path,
            fix="dvc repro evaluate   (trains first)",
        )
        judged = Judged.empty(reader.num_samples, len(about.labels))
        _predict(_model(about, tensors, path, device), about, reader, judged)
        keys = reader.keys(torch.arange(reader.num_samples))
        _check_finite(judged, keys, path)
        if _rank() != 0:
            return {}
        predictions = _by_key(keys, judged)
        scores = score(predictions)
        job.log.info("accuracy %.4f of %d samples", scores.accuracy, scores.num_samples)
        tables.write(job.out, about.labels, predictions, scores)
        worst = predictions.worst_mistakes(job.params.num_mistakes)
        images = reader.images(predictions.ids[worst])
        shown = _shown(worst, images, predictions, about.labels)
        mistakes.draw(shown, job.out / "plots" / "mistakes.png")
        return tables.metrics(predictions, scores)


@dataclass(frozen=True, eq=False)
class Judged:
    """Room for the results of a split, by sample id; zeros where another rank fills it in."""

    log_probabilities: NDArray[np.float32]  # [N, C]
    labels: NDArray[np.int64]  # [N]

    @classmethod
    def empty(cls, num_samples: int, num_classes: int) -> Judged:
        """Room for that many."""
        return cls(
            np.zeros((num_samples, num_classes), np.float32), np.zeros(num_samples, np.int64)
        )

    def share(self) -> None:
        """Give every rank the rows of all; exact, since each row is zero on all ranks but one."""
        if dist.is_initialized():
            watchdog.at("the all_reduce of predictions")
            for part in (self.log_probabilities, self.labels):
                dist.all_reduce(torch.from_numpy(part))


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _placement(device: torch.device) -> Placement:
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    return Placement(_rank(), world_size, num_threads=2, prefetch_batches=2, device=device)


def _model(
    about: weights.About, tensors: dict[str, Tensor], path: Path, device: torch.device
) -> nn.Module:
    """The model of a weights file, ready to judge."""
    model = models.build(about.model, about.shape, len(about.labels))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise HeadraceError(
            f"The weights do not fit the model {about.model!r}: its code has changed since.",
            where=str(path),
            found=" ".join(str(error).split()),
            fix="dvc repro train",
        ) from error
    # Images are stored channels last; convolutions on them are faster that way.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in the stub
    return model.to(device).eval()


@torch.inference_mode()
def _predict(model: nn.Module, about: weights.About, reader: Reader, judged: Judged) -> None:
    """Fill in the rows of this rank's microbatches, then those of all."""
    normalisation = Normalisation(about.mean, about.std)
    for batch in reader.batches(reader.start()):
        for microbatch in batch.microbatches:
            logits = model(normalisation.apply(microbatch.images)).float()
            rows = torch.log_softmax(logits, dim=1)[microbatch.mask].cpu().numpy()
            ids = microbatch.ids[microbatch.mask].cpu().numpy()
            judged.log_probabilities[ids] = rows
            judged.labels[ids] = microbatch.labels[microbatch.mask].cpu().numpy()
    judged.share()


def _check_finite(judged: Judged, keys: Sequence[str], path: Path) -> None:
    bad = np.flatnonzero(~np.isfinite(judged.log_probabilities).all(axis=1))
    if bad.size:
        raise HeadraceError(
            "The model gives no finite number; its training has diverged.",
            where=str(path),
            found=f"{bad.size} of {len(keys)} samples, such as key {keys[bad[0]]!r}",
            fix="train with a lower lr: dvc exp run -S lr=...",
        )


def _by_key(keys: Sequence[str], judged: Judged) -> Predictions:
    """In the order of keys, which no param of the stages before can change."""
    ids = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    return Predictions(
        ids, [keys[row] for row in ids], judged.labels[ids], judged.log_probabilities[ids]
    )


def _shown(
    rows: NDArray[np.int64],
    images: NDArray[np.uint8],
    predictions: Predictions,
    labels: Sequence[str],
) -> list[mistakes.Mistake]:
    predicted, confidence = predictions.predicted, predictions.confidence
    return [
        mistakes.Mistake(
            image=image,
            key=predictions.keys[row],
            actual=labels[predictions.labels[row]],
            predicted=labels[predicted[row]],
            confidence=float(confidence[row]),
        )
        for row, image in zip(rows, images, strict=True)
    ]


if __name__ == "__main__":
    launch.main("trainers.evaluate")
