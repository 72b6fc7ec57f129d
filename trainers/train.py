"""Stage `train`: decoded shards to weights.

The same bits on any number of ranks, and through any number of kills.

    python -m trainers.train --data datasets/NAME/decoded --out runs/train

starts torchrun on this machine (`trainers.launch`); the data may also be behind a URL that fsspec
opens. Writes `model.safetensors` (the averaged weights), `metrics.json` and `plots/` (DVCLive),
`lineage.json` and `steps.parquet` (what `python -m trainers verify` compares with). Reads the
splits `train` and, where there is one, `val`; never `test`.

Interrupted at any moment, the next run of the same data, params and code goes on from the newest
checkpoint in `.state/` and ends with the bytes that the undisturbed run would have written.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
from pydantic import Field

from pipelines.core.errors import HeadraceError
from pipelines.core.params import TOP_LEVEL, params
from pipelines.core.report import Report
from pipelines.core.stage import Job
from pipelines.core.storage import write_text
from trainers import launch, metrics, models, numerics, optim, rng, weights
from trainers.augment import Augmentation
from trainers.checkpoint import Checkpoints, fingerprint, state_folder
from trainers.divergence import Budget
from trainers.environment import environment
from trainers.launch import StopRequest
from trainers.lineage import code, lineage
from trainers.normalise import Normalisation
from trainers.numerics import Precision
from trainers.reader import order
from trainers.reader.index import Index, open_index
from trainers.reader.loader import Placement, Reader
from trainers.schedule import Schedule
from trainers.session import Session
from trainers.state import State
from trainers.step import Recipe, Trainer

MAY_BE_URL = ("data",)
_READ_THREADS = 2
_PREFETCH_BATCHES = 4
_NOT_SEMANTIC = ("checkpoint_interval_s", "num_checkpoints")


@params
class Params:
    """The keys of `train:` in params.yaml."""

    lr: Annotated[float, Field(gt=0), TOP_LEVEL]
    """Learning rate at the end of the warm-up."""
    seed: Annotated[int, Field(ge=0), TOP_LEVEL]
    """Of initial weights, order, augmentation and dropout."""
    model: str
    """small, resnet18, or your own as module:callable."""
    epochs: Annotated[int, Field(ge=1)]
    """Passes over the training split."""
    batch_size: Annotated[int, Field(ge=1)]
    """Samples of a step, over all ranks."""
    num_logical_workers: Annotated[int, Field(ge=1)]
    """Fixed slices of every batch; the number of ranks may be anything up to it."""
    num_accumulation_steps: Annotated[int, Field(ge=1)]
    """Microbatches into which a slice is split, one after another, to save memory."""
    window_shards: Annotated[int, Field(ge=1)]
    """Shards whose samples are mixed with each other."""
    optimizer: Literal["sgd", "adamw"]
    """SGD with Nesterov momentum, or AdamW."""
    momentum: Annotated[float, Field(ge=0, lt=1)]
    """Of sgd."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Of all weights but biases and norms."""
    warmup_fraction: Annotated[float, Field(ge=0, le=1)]
    """Of all steps, over which the learning rate rises; then it falls as a cosine."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    """Probability taken from the true class and spread over all."""
    max_gradient_norm: Annotated[float, Field(ge=0)]
    """Longer gradients are shortened to it; 0: never."""
    max_skipped_steps: Annotated[int, Field(ge=0)]
    """Steps in a row whose loss or gradient is not finite that are left out; see `divergence`."""
    max_rollbacks: Annotated[int, Field(ge=0)]
    """How often more of them send the run back, to leave out what led there; then it fails."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)]
    """Of the averaged weights, which are the result; 0: the last weights are."""
    crop_padding_px: Annotated[int, Field(ge=0)]
    """Zeros around an image before a random crop of its own size; 0: no crop."""
    flip_probability: Annotated[float, Field(ge=0, le=1)]
    """Of a horizontal flip."""
    precision: Precision
    """fp32, tf32, bf16 (autocast) or fp16 (autocast and loss scaling)."""
    reduction: Literal["exact", "ddp"]
    """exact: the same bits on any number of ranks. ddp: faster, and gives that up."""
    num_threads: Annotated[int, Field(ge=1)]
    """CPU threads of a rank; changes bits, unlike the number of ranks."""
    checkpoint_interval_s: Annotated[float, Field(ge=0)]
    """Least time between two checkpoints; 0: after each step."""
    num_checkpoints: Annotated[int, Field(ge=1)]
    """How many to keep."""

    def semantic(self) -> dict[str, Any]:
        """What decides the bits of the weights."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if name not in _NOT_SEMANTIC}


def run(job: Job[Params]) -> Report:
    """Train, on every rank; rank 0 writes."""
    config, data = job.params, job.source("data")
    version = open_index(data).version
    files = code_of(config)
    run_id = fingerprint(dataset_version=version, params=config.semantic(), code=files)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        saves = stack.enter_context(Checkpoints(state_folder(run_id), config.num_checkpoints))
        session = prepare(config, data, stack, saves, stop)
        session.resume()
        session.run()
    if dist.get_rank() == 0:
        _write(job, session, files)
        shutil.rmtree(saves.folder, ignore_errors=True)
    return {"dataset_version": version, **session.state.history.epochs[-1]}


def code_of(config: Params) -> dict[str, str]:
    """The code that decides the weights of a run with these params, see `lineage.code`."""
    return code(("trainers.train", *models.modules(config.model)))


def prepare(
    config: Params,
    data: Path | str,
    stack: contextlib.ExitStack,
    saves: Checkpoints,
    stop: StopRequest,
) -> Session:
    """A run before its first step; `stack` closes its readers.

    The decoded dataset is in the folder, or behind the URL, `data`.

    Raises:
        HeadraceError: params, data and model do not fit each other.
    """
    _check(config)
    index = open_index(data)
    device = numerics.configure(config.precision, config.num_threads)
    plans = {"train": training_plan(config, index)}
    if "val" in index.splits:
        plans["val"] = order.evaluation(
            batch_size=config.batch_size, num_logical_workers=config.num_logical_workers
        )
    place = _placement(device)
    train, *val = (
        stack.enter_context(Reader(data, split, plan, place)) for split, plan in plans.items()
    )
    fresh = functools.partial(_fresh_state, config, index, train, device)
    state = fresh()
    schedule = Schedule(
        num_epochs=config.epochs,
        num_steps_per_epoch=train.num_steps_per_epoch,
        warmup_fraction=config.warmup_fraction,
        peak_learning_rate=config.lr,
        checkpoint_interval_s=config.checkpoint_interval_s,
        budget=Budget(config.max_skipped_steps, config.max_rollbacks),
    )
    trainer = Trainer(state.model, state.optimizer, state.scaler, _recipe(config, index))
    validating = val[0] if val else None
    return Session(schedule, state, trainer, train, validating, saves, stop, fresh)


def training_plan(config: Params, index: Index) -> order.Plan:
    """Which samples form a batch."""
    # A split that is smaller than one batch fills it by repetition, rather than not at all.
    is_tiny = index.split("train").num_samples < config.batch_size
    return order.training(
        seed=config.seed,
        batch_size=config.batch_size,
        num_logical_workers=config.num_logical_workers,
        window_shards=config.window_shards,
        tail="wrap" if is_tiny else "drop",
    )


def _check(config: Params) -> None:
    parts = config.num_logical_workers * config.num_accumulation_steps
    if config.batch_size % parts:
        raise HeadraceError(
            "A batch cannot be cut into equal microbatches.",
            where="params.yaml: train",
            expected="batch_size a multiple of num_logical_workers * num_accumulation_steps, "
            f"{config.num_logical_workers} * {config.num_accumulation_steps} = {parts}",
            found=f"batch_size {config.batch_size}",
            fix=f"dvc exp run -S train.batch_size={max(1, config.batch_size // parts) * parts}",
        )


def _placement(device: torch.device) -> Placement:
    return Placement(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        num_threads=_READ_THREADS,
        prefetch_batches=_PREFETCH_BATCHES,
        device=device,
    )


def _fresh_state(config: Params, index: Index, train: Reader, device: torch.device) -> State:
    rng.seed_torch(rng.key(config.seed, "initial weights"), device)
    model = models.build(config.model, index.shape, len(index.labels))
    # Images are stored channels last; convolutions on them are faster that way.
    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = optim.build(
        model, config.optimizer, momentum=config.momentum, weight_decay=config.weight_decay
    )
    scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
    return State(model, optim.averaged(model, config.ema_decay), optimizer, scaler, train.start())


def _recipe(config: Params, index: Index) -> Recipe:
    assert index.mean is not None and index.std is not None, "the split train has samples"  # noqa: PT018
    return Recipe(
        seed=config.seed,
        num_logical_workers=config.num_logical_workers,
        num_accumulation_steps=config.num_accumulation_steps,
        precision=config.precision,
        reduction=config.reduction,
        label_smoothing=config.label_smoothing,
        max_gradient_norm=config.max_gradient_norm,
        augmentation=Augmentation(config.crop_padding_px, config.flip_probability, config.seed),
        normalisation=Normalisation(index.mean, index.std),
    )


def _write(job: Job[Params], session: Session, files: Mapping[str, str]) -> None:
    config, state, index = job.params, session.state, session.train.index
    about = weights.About(
        model=config.model,
        shape=index.shape,
        labels=index.labels,
        dataset_version=index.version,
        mean=index.mean or (),
        std=index.std or (),
        params=config.semantic(),
        seeds={"seed": config.seed},
        code=dict(files),
        environment=environment(),
        chain=state.chain.summary(),
    )
    path = job.out / "model.safetensors"
    weights.write(path, state.ema.module.state_dict(), about)
    state.chain.write(job.out / "steps.parquet")
    metrics.write(state.history, job.out)
    record = json.dumps(lineage(about, path) | session.left_out(), indent=2, sort_keys=True)
    write_text(job.out / "lineage.json", f"{record}\n")


if __name__ == "__main__":
    launch.main("trainers.train")
