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
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch.distributed as dist
from pydantic import Field

from pipelines.core.cluster import machine
from pipelines.core.params import TOP_LEVEL, params
from pipelines.core.report import Report
from pipelines.core.stage import Job
from pipelines.core.storage import sha256_file, write_text
from trainers import launch, memory, metrics, models, substituted, weights
from trainers.backup import Backup
from trainers.checkpoint import Checkpoints, fingerprint, state_folder
from trainers.environment import environment
from trainers.launch import StopRequest
from trainers.lineage import code, lineage
from trainers.numerics import Precision
from trainers.prepare import prepare
from trainers.profiling import profiled
from trainers.reader.index import open_index
from trainers.session import Session
from trainers.substituted import Ledger

MAY_BE_URL = ("data",)
_NOT_SEMANTIC = ("checkpoint_interval_s", "num_checkpoints", "keep_every_steps", "profile")


@params
class Params:
    """The keys of `train:` in params.yaml."""

    lr: Annotated[float, Field(gt=0), TOP_LEVEL]
    """Learning rate at the end of the warm-up."""
    seed: Annotated[int, Field(ge=0), TOP_LEVEL]
    """Of initial weights, order, augmentation and dropout."""
    model: str
    """small, resnet18, resnet50, vit_s, or your own as module:callable."""
    pretrained: str | None
    """A safetensors file to begin with, below the project; null: fresh weights. See `finetune`."""
    freeze: tuple[str, ...]
    """Patterns of the names of parameters that stay as they are."""
    epochs: Annotated[int, Field(ge=1)]
    """Passes over the training split."""
    batch_size: Annotated[int, Field(ge=1)]
    """Samples of a step, over all ranks."""
    num_logical_workers: Annotated[int, Field(ge=1)]
    """Fixed slices of every batch; the number of ranks may be anything up to it."""
    num_accumulation_steps: Annotated[int, Field(ge=1)] | Literal["auto"]
    """Microbatches into which a slice is split, one after another, to save memory; see `memory`."""
    window_shards: Annotated[int, Field(ge=1)]
    """Shards whose samples are mixed with each other."""
    on_bad_sample: Literal["fail", "substitute"]
    """A damaged sample: end the run, or put always the same other one in its place, and tell."""
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
    result: Literal["last", "best"]
    """The weights of the last epoch, or of the one with the best val accuracy."""
    patience_epochs: Annotated[int, Field(ge=0)]
    """End after so many epochs without a better val accuracy; 0: never."""
    crop_padding_px: Annotated[int, Field(ge=0)]
    """Zeros around an image before a random crop of its own size; 0: no crop."""
    flip_probability: Annotated[float, Field(ge=0, le=1)]
    """Of a horizontal flip."""
    num_operations: Annotated[int, Field(ge=0, le=10)]
    """Random operations on each image (rotation, contrast and others); see `operations`."""
    operation_magnitude: Annotated[float, Field(ge=0, le=1)]
    """Of those, as a part of the largest change."""
    mixup_probability: Annotated[float, Field(ge=0, le=1)]
    """That another image shines through a sample; see `mix`."""
    cutmix_probability: Annotated[float, Field(ge=0, le=1)]
    """That a rectangle of another image covers a part of a sample."""
    precision: Precision
    """fp32, tf32, bf16 (autocast) or fp16 (autocast and loss scaling)."""
    reduction: Literal["exact", "ddp"]
    """exact: the same bits on any number of ranks. ddp: faster, and gives that up."""
    gradient_checkpointing: bool
    """Compute blocks twice rather than keep what they computed; changes no bit."""
    compile: bool
    """Have torch.compile make kernels of the model; changes bits."""
    num_threads: Annotated[int, Field(ge=1)]
    """CPU threads of a rank; changes bits, unlike the number of ranks."""
    checkpoint_interval_s: Annotated[float, Field(ge=0)]
    """Least time between two checkpoints; 0: after each step."""
    num_checkpoints: Annotated[int, Field(ge=1)]
    """How many to keep."""
    keep_every_steps: Annotated[int, Field(ge=0)]
    """Save after each multiple of so many steps, and keep that for `verify`; 0: none."""
    profile: bool
    """Trace a few steps, into runs/profile/; see `profiling`."""

    def semantic(self) -> dict[str, Any]:
        """What decides the bits of the weights."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if name not in _NOT_SEMANTIC}


def run(job: Job[Params]) -> Report:
    """Train, on every rank; rank 0 writes."""
    data = job.source("data")
    index = open_index(data)
    config = memory.fitted(job.params, index)
    files = code_of(config)
    run_id = fingerprint(dataset_version=index.version, params=config.semantic(), code=files)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        saves = stack.enter_context(_checkpoints(config, state_folder(run_id)))
        session = prepare(config, data, stack, saves, stop)
        session.resume()
        is_traced = config.profile and dist.get_rank() == 0
        session.run(stack.enter_context(profiled(job.out.parent / "profile", is_on=is_traced)))
    if dist.get_rank() == 0:
        _write(job.out, config, session, files)
        saves.finish()
    return {"dataset_version": index.version, **session.state.history.epochs[-1]}


def _checkpoints(config: Params, folder: Path) -> Checkpoints:
    """Those of this run; collective, since one rank may have to bring them from the backup."""
    url = machine().backup_url
    backup = Backup(url, folder) if url else None
    saves = Checkpoints(folder, config.num_checkpoints, config.keep_every_steps, backup)
    if dist.get_rank() == 0:
        saves.bring_back()
    dist.barrier()
    return saves


def code_of(config: Params) -> dict[str, str]:
    """The files that decide the weights of a run with these params, see `lineage.code`."""
    files = code(("trainers.train", *models.modules(config.model)))
    if config.pretrained:
        path = Path(config.pretrained)
        files[f"pretrained:{path}"] = sha256_file(path) if path.is_file() else "missing"
    return files


def _write(out: Path, config: Params, session: Session, files: Mapping[str, str]) -> None:
    state, index = session.state, session.train.index
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
    path = out / "model.safetensors"
    weights.write(path, state.result(), about)
    state.chain.write(out / "steps.parquet")
    replaced = Ledger(session.saves.folder).entries()
    if config.on_bad_sample == "substitute":
        state.history.epochs[-1]["substituted"] = len(replaced)
    metrics.write(state.history, out)
    told = lineage(about, path) | session.left_out() | substituted.record(replaced)
    record = json.dumps(told, indent=2, sort_keys=True)
    write_text(out / "lineage.json", f"{record}\n")


if __name__ == "__main__":
    launch.main("trainers.train")
