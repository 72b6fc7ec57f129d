"""Where and with what arithmetic a rank computes.

Sets everything torch offers for equal bits from run to run: deterministic kernels, cuDNN without
benchmarking, a fixed cuBLAS workspace, a fixed number of CPU threads. What it cannot set (CPU
capability, GPU, library builds) stands in the lineage.

The number of threads is a parameter of the run and not of the machine, although it is about speed:
kernels split their sums by thread, so another number of threads gives other weights. Another
number of ranks does not.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeAlias, assert_never

import torch

Precision: TypeAlias = Literal["fp32", "tf32", "bf16", "fp16"]

# cuBLAS reads it when CUDA starts; this module is imported before.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def configure(precision: Precision, num_threads: int) -> torch.device:
    """Set the arithmetic of this process; return its device, a GPU where there is one."""
    torch.set_num_threads(num_threads)
    # What use_deterministic_algorithms(True) does, without its two seconds of importing a compiler.
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The mixed precision of forward passes; weights, gradients and losses stay float32."""
    match precision:
        case "fp32" | "tf32":
            return nullcontext()
        case "bf16":
            return torch.autocast(device.type, torch.bfloat16)
        case "fp16":
            return torch.autocast(device.type, torch.float16)
    assert_never(precision)
