"""The facts of a machine and its software that change the bits of a result.

Measured on a CPU: the number of threads, ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_CBWR each
change the weights of an otherwise equal run. So they are recorded with every run, and a run that
resumes under others can say which. What changes no bits (host name, paths, number of ranks and of
GPUs, speed) is left out: equal runs must write equal records.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "numba", "pyarrow", "safetensors", "triton", "torchvision", "timm")
"""Packages that compute or carry the numbers; those not installed are left out."""

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "KMP_DETERMINISTIC_REDUCTION",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NCCL_ALGO",
    "NCCL_NVLS_ENABLE",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Variables that change bits and whose effect torch does not report (it does for OMP_NUM_THREADS:
`threads`, and for ATEN_CPU_CAPABILITY: `capability`). Only those that are set are recorded."""

CPU_FEATURES = {
    # x86-64
    "amx_bf16",
    "amx_fp16",
    "amx_int8",
    "amx_tile",
    "avx",
    "avx2",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "avx512bw",
    "avx512dq",
    "avx512f",
    "avx512vl",
    "avx_vnni",
    "f16c",
    "fma",
    # aarch64
    "asimd",
    "asimddp",
    "asimdhp",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
    "svebf16",
}
"""What oneDNN and MKL choose their kernels by (names of /proc/cpuinfo)."""


def environment() -> dict[str, Any]:
    """The facts of this process that change the bits of a result, JSON-able.

    The number of GPUs is left out, as every number of ranks is: only their kinds count.
    """
    return {
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "packages": _packages(),
        "torch": {
            "build": _torch_build(),
            "git": torch.version.git_version,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
        "cpu": {
            "machine": platform.machine(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "features": sorted(_cpu_features() & CPU_FEATURES),
        },
        "threads": torch.get_num_threads(),
        "gpus": _gpus(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Which facts of two environments differ, one line each: `threads: 1 -> 2`."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return [
        f"{name}: {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _torch_build() -> str:
    """A digest of the compilers, flags and libraries that torch was built with."""
    lines = torch.__config__.show().splitlines()
    # What it would use on this machine stands among them; `capability` says it already.
    built = [line for line in lines if "CPU capability usage" not in line]
    return hashlib.sha256("\n".join(built).encode()).hexdigest()[:16]


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_features() -> frozenset[str]:
    """The CPU's feature flags, as Linux tells them (`flags` on x86-64, `Features` on aarch64)."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _gpus() -> list[dict[str, str]]:
    """The kinds of GPU that this process can see, each once."""
    kinds = set()
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        kinds.add((properties.name, f"{properties.major}.{properties.minor}"))
    return [
        {"name": name, "capability": capability, "driver": _driver()}
        for name, capability in sorted(kinds)
    ]


def _driver() -> str:
    """Version of the NVIDIA driver, which compiles the kernels that come without machine code."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except FileNotFoundError:
        return "unknown"
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", text)
    return found[0] if found else "unknown"


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
