"""Where the time of a step goes: a trace of a few steps, and a table of the costliest operators.

Written beside the out of the run and not into it, since times differ from run to run:
`runs/profile/trace.json.gz`, for https://ui.perfetto.dev or chrome://tracing, and
`runs/profile/operators.txt`. Changes no bit of the weights. The steps that are traced take longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile, schedule

log = logging.getLogger("headrace.train")

TRACE, OPERATORS = "trace.json.gz", "operators.txt"
_STEPS: Final = {"wait": 4, "warmup": 1, "active": 3, "repeat": 1}
"""The first ones are about memory and kernels that are used for the first time."""
_NUM_OPERATORS: Final = 25


@contextmanager
def profiled(folder: Path, *, is_on: bool) -> Iterator[Callable[[], None]]:
    """Trace some of the steps inside; yields what to call after each."""
    if not is_on:
        yield lambda: None
        return
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]

    def write(found: profile) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        table = found.key_averages().table(sort_by=order, row_limit=_NUM_OPERATORS)
        (folder / OPERATORS).write_text(table)
        found.export_chrome_trace(str(folder / TRACE))
        log.info("traced %d steps: %s and %s in %s", _STEPS["active"], OPERATORS, TRACE, folder)

    with profile(activities=activities, schedule=schedule(**_STEPS), on_trace_ready=write) as made:
        yield made.step
