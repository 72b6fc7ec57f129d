"""From one command to a group of ranks, and from their ends to one exit code.

`python -m trainers.<stage>` checks the params, then becomes torchrun for as many ranks as this
machine has GPUs, or one, or as cluster.yaml says. Under torchrun or Slurm, where `RANK` is set, it
is a rank itself. Rank 0 is the stage: it holds the lock, writes the temporary folder and renames
it. All ranks call the stage's `run(job)`.

Exit codes: 0 done; 75 (EX_TEMPFAIL) stopped by SIGTERM or SIGINT with its state saved, run me
again; 1 anything else. A fault is told once, by the rank that met it first, and not by the others
that lost it in the middle of a collective; a rank that is silent is named (`trainers.watchdog`).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

import torch
import torch.distributed as dist
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from pipelines.core import params, process, stage
from pipelines.core.audit import Opened
from pipelines.core.cluster import machine
from pipelines.core.errors import HeadraceError
from pipelines.core.storage import temporary_sibling
from trainers.watchdog import Watchdog, is_about_another_rank

EX_TEMPFAIL: Final = 75
_SHUTDOWN_TIMEOUT_S: Final = 120  # for a save on its way to a slow disk
_COLLECTIVE_TIMEOUT: Final = timedelta(minutes=10)
_TOLD: Final = "a fault was told"


def main(module_name: str) -> None:
    """Run the stage that `module_name` holds on its ranks; the last line of its module."""
    process.configure_logging()
    process.die_with_parent()
    argv = sys.argv[1:]
    if "RANK" in os.environ:
        sys.exit(_run_rank(module_name, argv))
    try:
        process.require_linux()
        num_ranks = _check(module_name)
    except HeadraceError as error:
        sys.exit(f"\nERROR in {module_name}: {error}")
    sys.exit(_run_ranks(module_name, num_ranks, argv))


def _check(module_name: str) -> int:
    """Refuse bad params before any rank starts; the number of ranks."""
    module = importlib.import_module(module_name)
    params.load(module.Params, module_name.rpartition(".")[2])
    return machine().num_ranks or torch.cuda.device_count() or 1


def _run_ranks(module_name: str, num_ranks: int, argv: Sequence[str]) -> int:
    """Be torchrun, and return what to exit with."""
    # Each rank sets its own number of threads; torchrun would warn about a default.
    os.environ["OMP_NUM_THREADS"] = "1"
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    options = ["--standalone", f"--nproc-per-node={num_ranks}"]
    options.append(f"--shutdown-timeout={_SHUTDOWN_TIMEOUT_S}")
    try:
        torchrun.run(torchrun.parse_args([*options, "-m", module_name, *argv]))
    except SignalException:
        return EX_TEMPFAIL
    except ChildFailedError as error:
        failures = error.failures.values()
        if any(failure.exitcode == EX_TEMPFAIL for failure in failures):
            return EX_TEMPFAIL
        _tell_killed(failures)
        return 1
    return 0


def _tell_killed(failures: Iterable[ProcessFailure]) -> None:
    """Name the ranks that had no chance to say anything."""
    for failure in failures:
        if failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
            logging.getLogger("headrace.launch").error(
                "rank %d was ended by %s", failure.local_rank, failure.signal_name()
            )


def _run_rank(module_name: str, argv: Sequence[str]) -> int:
    """Be one rank, and return what to exit with."""
    store, rank, world_size = next(dist.rendezvous("env://"))
    if rank != 0:
        logging.getLogger("headrace").setLevel(logging.WARNING)
    try:
        with process_group(store, rank, world_size), Watchdog(store, rank, world_size):
            _run_stage(module_name, argv, rank)
    except HeadraceError as error:
        if store.add(_TOLD, 1) == 1:
            sys.stderr.write(f"\nERROR in {module_name}: {error}\n")
        return 1
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        # Where another rank has gone, what this one met is only that it is gone.
        if store.add(_TOLD, 1) == 1:
            raise
        return 1
    return 0


def _run_stage(module_name: str, argv: Sequence[str], rank: int) -> None:
    name = module_name.rpartition(".")[2]
    opened = Opened(Path.cwd())
    module = importlib.import_module(module_name)
    if rank == 0:
        stage.execute(module, name, argv)
        opened.save(name, argv)
        return
    inputs, urls, out, _ = stage.arguments(module, name, argv)
    settings = params.load(module.Params, name)
    with contextlib.ExitStack() as stack:
        module.run(stage.Job(name, settings, inputs, temporary_sibling(out), stack, [], urls))


@contextlib.contextmanager
def process_group(store: dist.Store, rank: int, world_size: int) -> Iterator[None]:
    """The default process group: NCCL where there are GPUs, gloo elsewhere."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=rank,
        world_size=world_size,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    try:
        yield
    except SystemExit:
        dist.destroy_process_group()
        raise
    else:
        dist.destroy_process_group()


class StopRequest:
    """Notes SIGTERM and SIGINT while it is entered; a rank asks it at every step.

    Under torchrun a Ctrl-C reaches the ranks through the launcher, perhaps as both signals: the
    second changes nothing.
    """

    def __init__(self) -> None:
        self.is_set = False

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if is_about_another_rank(error):
            return  # The launcher ends this rank, which first has to hear whose fault it is.
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _: int, __: FrameType | None) -> None:
        self.is_set = True
