"""From params and data to a run before its first step."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pipelines.core.errors import HeadraceError
from trainers import finetune, models, numerics, optim, rng
from trainers.augment import Augmentation
from trainers.checkpoint import Checkpoints
from trainers.divergence import Budget
from trainers.launch import StopRequest
from trainers.mix import Mix
from trainers.normalise import Normalisation
from trainers.operations import Operations
from trainers.reader import order
from trainers.reader.index import Index, open_index
from trainers.reader.loader import Placement, Reader
from trainers.recompute import recompute_blocks
from trainers.schedule import Schedule
from trainers.session import Session
from trainers.state import State
from trainers.step import Recipe, Trainer
from trainers.substituted import Ledger

if TYPE_CHECKING:
    from trainers import train

_READ_THREADS = 2
_PREFETCH_BATCHES = 4


def prepare(
    config: train.Params,
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
    index = open_index(data)
    _check(config, index)
    device = numerics.configure(config.precision, config.num_threads)
    plans = {"train": training_plan(config, index)}
    if "val" in index.splits:
        plans["val"] = order.evaluation(
            batch_size=config.batch_size, num_logical_workers=config.num_logical_workers
        )
    place = _placement(device)
    note = Ledger(saves.folder).note if config.on_bad_sample == "substitute" else None
    training, *val = (
        stack.enter_context(Reader(data, split, plan, place, note if split == "train" else None))
        for split, plan in plans.items()
    )
    fresh = functools.partial(_fresh_state, config, index, training, device)
    state = fresh()
    schedule = Schedule(
        num_epochs=config.epochs,
        num_steps_per_epoch=training.num_steps_per_epoch,
        warmup_fraction=config.warmup_fraction,
        peak_learning_rate=config.lr,
        checkpoint_interval_s=config.checkpoint_interval_s,
        budget=Budget(config.max_skipped_steps, config.max_rollbacks),
        patience_epochs=config.patience_epochs,
        keeps_best=config.result == "best",
    )
    trainer = Trainer(state.model, state.optimizer, state.scaler, _recipe(config, index))
    validating = val[0] if val else None
    return Session(schedule, state, trainer, training, validating, saves, stop, fresh)


def training_plan(config: train.Params, index: Index) -> order.Plan:
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


def _check(config: train.Params, index: Index) -> None:
    if "val" not in index.splits and (config.result == "best" or config.patience_epochs):
        raise HeadraceError(
            "Without a split val there is no best epoch.",
            where="params.yaml: train.result, train.patience_epochs",
            expected="result: last and patience_epochs: 0, or a dataset with the split val",
            found=f"result: {config.result}, patience_epochs: {config.patience_epochs}, and the "
            f"splits {', '.join(index.splits)}",
            fix="clean.val_fraction in params.yaml sets samples aside for val",
        )
    if config.mixup_probability + config.cutmix_probability > 1:
        raise HeadraceError(
            "A sample is mixed in one way at most.",
            where="params.yaml: train.mixup_probability, train.cutmix_probability",
            expected="probabilities that sum up to at most 1",
            found=f"{config.mixup_probability:g} + {config.cutmix_probability:g}",
        )
    parts = config.num_logical_workers * _num_accumulation_steps(config)
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


def _num_accumulation_steps(config: train.Params) -> int:
    assert config.num_accumulation_steps != "auto", "`memory.fitted` puts a number in its place"
    return config.num_accumulation_steps


def _fresh_state(
    config: train.Params, index: Index, training: Reader, device: torch.device
) -> State:
    rng.seed_torch(rng.key(config.seed, "initial weights"), device)
    model = models.build(config.model, index.shape, len(index.labels))
    if config.pretrained:
        finetune.load(model, Path(config.pretrained))
    finetune.freeze(model, config.freeze)
    if config.gradient_checkpointing:
        recompute_blocks(model)
    # Images are stored channels last; convolutions on them are faster that way.
    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = optim.build(
        model, config.optimizer, momentum=config.momentum, weight_decay=config.weight_decay
    )
    scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
    average = optim.averaged(model, config.ema_decay)
    return State(model, average, optimizer, scaler, training.start())


def _recipe(config: train.Params, index: Index) -> Recipe:
    assert index.mean is not None and index.std is not None, "the split train has samples"  # noqa: PT018
    return Recipe(
        seed=config.seed,
        num_logical_workers=config.num_logical_workers,
        num_accumulation_steps=_num_accumulation_steps(config),
        precision=config.precision,
        reduction=config.reduction,
        label_smoothing=config.label_smoothing,
        max_gradient_norm=config.max_gradient_norm,
        recomputes=config.gradient_checkpointing,
        compiles=config.compile,
        augmentation=Augmentation(config.crop_padding_px, config.flip_probability, config.seed),
        operations=Operations(config.num_operations, config.operation_magnitude, config.seed),
        mix=Mix(config.mixup_probability, config.cutmix_probability, config.seed),
        normalisation=Normalisation(index.mean, index.std),
    )
