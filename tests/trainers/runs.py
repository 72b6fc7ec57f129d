"""Small training runs for tests: a folder with data and params, trained here or by the real
command."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ruamel.yaml import YAML

from pipelines.core import params, stage
from tests.decoded import write_decoded
from trainers import train

ROOT = Path(__file__).parents[2]
NUM_STEPS = 8
"""Of a run with `PARAMS`: two epochs of 64 samples."""

PARAMS: dict[str, Any] = {
    "lr": 0.05,
    "seed": 1,
    "train": {
        "model": "small",
        "pretrained": None,
        "freeze": [],
        "result": "last",
        "patience_epochs": 0,
        "gradient_checkpointing": False,
        "compile": False,
        "epochs": 2,
        "batch_size": 16,
        "num_logical_workers": 4,
        "num_accumulation_steps": 1,
        "window_shards": 2,
        "on_bad_sample": "fail",
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 0.0005,
        "warmup_fraction": 0.25,
        "label_smoothing": 0.1,
        "max_gradient_norm": 1.0,
        "max_skipped_steps": 0,
        "max_rollbacks": 0,
        "ema_decay": 0.9,
        "crop_padding_px": 1,
        "flip_probability": 0.5,
        "num_operations": 0,
        "operation_magnitude": 0.3,
        "mixup_probability": 0.0,
        "cutmix_probability": 0.0,
        "precision": "fp32",
        "reduction": "exact",
        "num_threads": 1,
        "checkpoint_interval_s": 0.0,
        "num_checkpoints": 2,
        "keep_every_steps": 0,
        "profile": False,
    },
}
"""BatchNorm, dropout, augmentation, clipping and averaging are all on; saves after each step."""


def make_run(folder: Path, **changes: Any) -> Path:
    """A folder to train in: `decoded/` and params.yaml with `changes` to the section `train`."""
    write_decoded(
        folder / "decoded",
        splits={"train": [24, 20, 20], "val": [10, 0, 3]},
        shape=(12, 12, 1),
        num_classes=4,
    )
    set_params(folder, **changes)
    return folder


def set_params(folder: Path, **changes: Any) -> None:
    """Write params.yaml anew."""
    top = {name: changes.pop(name) for name in ("lr", "seed") if name in changes}
    YAML().dump(PARAMS | top | {"train": PARAMS["train"] | changes}, folder / "params.yaml")


@contextmanager
def alone() -> Iterator[None]:
    """A process group of this process only; its arithmetic is as before afterwards."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with arithmetic_kept():
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def arithmetic_kept() -> Iterator[None]:
    """The arithmetic of this process is as before afterwards."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_deterministic_debug_mode("default")


def train_here(folder: Path, name: str = "here", url: str | None = None) -> Path:
    """Train in this process as the only rank, with `folder` as current folder; the out.

    The data are in `folder`/decoded, or behind `url`.
    """
    out = folder / "runs" / name
    out.mkdir(parents=True)
    config = params.load(train.Params, "train", folder / "params.yaml")
    with alone(), ExitStack() as stack:
        urls = {"data": url} if url else {}
        train.run(stage.Job("train", config, {"data": folder / "decoded"}, out, stack, [], urls))
    return out


def start(folder: Path, num_ranks: int, name: str = "there") -> subprocess.Popen[str]:
    """Start the real command on several ranks."""
    command = [sys.executable, "-m", "trainers.train", "--data", "decoded", "--out", f"runs/{name}"]
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "HEADRACE_NUM_RANKS": str(num_ranks)}
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train_there(folder: Path, num_ranks: int, name: str = "there") -> Path:
    """Train by the real command on several ranks; the out."""
    process = start(folder, num_ranks, name)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return folder / "runs" / name


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write what `contents` gave into a new folder; the folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def rewritten(path: Path, old: bytes, new: bytes) -> None:
    """Replace bytes of a file; they must be there, once."""
    data = path.read_bytes()
    assert data.count(old) == 1, old
    path.write_bytes(data.replace(old, new))


def contents(out: Path) -> dict[str, bytes]:
    """Every file of an out: relative path to bytes."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {str(path.relative_to(out)): path.read_bytes() for path in files}
