"""Where and how wide things run: the machine's configuration, never the project's.

An optional `cluster.yaml` beside dvc.yaml, git-ignored and never a dep, or environment variables,
which win. Nothing here may change a byte of any output, only how soon it is there.

    cluster: threads          # threads (default) | processes | tcp://host:8786 | slurm | kubernetes
    num_workers: 2            # default: one a core
    num_ranks: 2              # processes of the trainer; default: one a GPU, or one
    cache_folder: /scratch/headrace   # of shards out of a bucket; default: .state/shards
    cache_max_gib: 100        # its size, at most; default: 16
    memo_max_gib: 100         # size of .memo/, at most; 0: nothing is kept; default: 32
    backup_url: s3://bucket/headrace  # for a second copy of checkpoints; default: none
    job: {queue: cpu, memory: 8GiB}   # slurm, kubernetes: handed to dask-jobqueue's SLURMCluster or
    dask-kubernetes' KubeCluster

Environment: HEADRACE_CLUSTER, HEADRACE_NUM_WORKERS, HEADRACE_NUM_RANKS, HEADRACE_CACHE_FOLDER,
HEADRACE_CACHE_MAX_GIB, HEADRACE_MEMO_MAX_GIB, HEADRACE_BACKUP_URL.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pipelines.core.errors import HeadraceError, did_you_mean
from pipelines.core.typed import faulty, read_yaml, typed, validate

if TYPE_CHECKING:
    from distributed import Client

KINDS = ("threads", "processes", "slurm", "kubernetes")
_ADDRESS_SCHEMES = ("tcp://", "tls://", "ucx://", "ws://", "wss://", "inproc://")
_ENVIRONMENT = {
    "HEADRACE_CLUSTER": "cluster",
    "HEADRACE_NUM_WORKERS": "num_workers",
    "HEADRACE_NUM_RANKS": "num_ranks",
    "HEADRACE_CACHE_FOLDER": "cache_folder",
    "HEADRACE_CACHE_MAX_GIB": "cache_max_gib",
    "HEADRACE_MEMO_MAX_GIB": "memo_max_gib",
    "HEADRACE_BACKUP_URL": "backup_url",
}
_CONNECT_TIMEOUT_S = 30
# Without an address Dask serves its pages on every interface, at one port that runs fight for.
_LOOPBACK = {"dashboard_address": "127.0.0.1:0", "worker_dashboard_address": "127.0.0.1:0"}


@typed
class Machine:
    """What cluster.yaml and the environment say of this machine."""

    cluster: str = "threads"
    """threads, processes, a scheduler's address, slurm or kubernetes."""
    num_workers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Dask workers (threads of one process for `threads`); None: one a core."""
    num_ranks: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Processes of the trainer on this machine; None: one a GPU, or one."""
    cache_folder: str | None = None
    """Where shards out of a bucket are kept: a local disk; None: `.state/shards`."""
    cache_max_gib: Annotated[float, Field(gt=0)] = 16.0
    """How large that folder may grow."""
    memo_max_gib: Annotated[float, Field(ge=0)] = 32.0
    """How large `.memo`, the results that are used again, may grow; 0: nothing is kept."""
    backup_url: str | None = None
    """Where the trainer keeps a second copy of its checkpoints; None: nowhere."""
    job: Mapping[str, Any] = Field(default_factory=dict)
    """Keyword arguments of SLURMCluster or KubeCluster."""

    @property
    def workers(self) -> int:
        """Number of workers, resolved."""
        return self.num_workers or len(os.sched_getaffinity(0))


def machine(path: Path = Path("cluster.yaml")) -> Machine:
    """Read the machine configuration; without a file or variables, everything runs in this process.

    Raises:
        HeadraceError: an unknown key or variable, a wrong type or an unknown kind of cluster.
    """
    _check_variables()
    settings: dict[str, Any] = read_yaml(path) if path.exists() else {}
    where = str(path)
    for variable, key in _ENVIRONMENT.items():
        value = os.environ.get(variable, "")
        if value:
            where = f"{where} with {variable}"
            settings[key] = _read(variable, key, value)
    found = validate(Machine, settings, where=where)
    if found.cluster not in KINDS and not found.cluster.startswith(_ADDRESS_SCHEMES):
        near = did_you_mean(found.cluster, KINDS)
        choices = f"{', '.join(KINDS)}, or an address such as tcp://host:8786"
        raise faulty(
            where,
            [f"cluster: expected {choices}, found {found.cluster!r}.{near}"],
        )
    return found


def _check_variables() -> None:
    unknown = sorted(
        name for name in os.environ if name.startswith("HEADRACE_") and name not in _ENVIRONMENT
    )
    if unknown:
        raise HeadraceError(
            f"Nothing reads the variable {unknown[0]}.{did_you_mean(unknown[0], _ENVIRONMENT)}",
            where="environment",
            expected=", ".join(_ENVIRONMENT),
            found=", ".join(unknown),
            fix=f"unset {' '.join(unknown)}",
        )


def _read(variable: str, key: str, value: str) -> str | int | float:
    if key in ("cluster", "cache_folder", "backup_url"):
        return value
    kind = float if key in ("cache_max_gib", "memo_max_gib") else int
    try:
        return kind(value)
    except ValueError:
        raise HeadraceError(
            f"{variable} must be a {'number' if kind is float else 'whole number'}.",
            where="environment",
            found=repr(value),
            fix=f"unset {variable}",
        ) from None


@contextmanager
def connect(where: Machine) -> Iterator[Client]:
    """A Dask client for this machine, closed at the end with all that was started for it.

    Raises:
        HeadraceError: the scheduler cannot be reached, or a package for this kind of cluster is
            missing.
    """
    from distributed import Client  # noqa: PLC0415 - half a second that most stages can save

    if where.cluster.startswith(_ADDRESS_SCHEMES):
        try:
            client = Client(where.cluster, timeout=_CONNECT_TIMEOUT_S, set_as_default=False)
        except OSError as error:
            raise HeadraceError(
                "The Dask scheduler did not answer.",
                where=where.cluster,
                found=str(error),
                fix="start one with `dask scheduler`, or set `cluster: threads` in cluster.yaml",
            ) from None
        with client:
            yield client
        return
    with _start(where) as started, Client(started, set_as_default=False) as client:
        yield client


def _start(where: Machine) -> Any:
    """Start a cluster of a kind that is not joined by address; the result is a context manager."""
    from distributed import LocalCluster  # noqa: PLC0415 - half a second that most stages can save

    match where.cluster:
        case "threads":
            # No memory limit: the workers are this process, and pausing it would pause the stage
            # itself.
            return LocalCluster(
                n_workers=1,
                threads_per_worker=where.workers,
                processes=False,
                memory_limit=0,
                **_LOOPBACK,
            )
        case "processes":
            return LocalCluster(
                n_workers=where.workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                **_LOOPBACK,
            )
        case "slurm":
            root = str(Path.cwd())
            prologue = [f"cd {root}", f"export PYTHONPATH={root}"]
            cluster = _optional("dask_jobqueue", "dask-jobqueue").SLURMCluster(
                **{"cores": 1, "memory": "4GiB", "job_script_prologue": prologue, **where.job}
            )
        case "kubernetes":
            cluster = _optional("dask_kubernetes.operator", "dask-kubernetes").KubeCluster(
                **{"name": "headrace", **where.job}
            )
        case other:
            raise AssertionError(other)
    cluster.scale(where.workers)
    return cluster


def _optional(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise HeadraceError(
            f"This kind of cluster needs the package {package}.",
            where="cluster.yaml:cluster",
            found=str(error),
            fix=f".venv/bin/pip install {package}",
        ) from None
