"""The memo: what was made of the same inputs, by the same code, is not made again.

A stage cuts its work into tasks, usually one a bucket, each with the content of its inputs. A
task's fingerprint is the SHA-256 of everything that its result depends on:

- the content of its inputs (`Task.content`) and its name
- the settings that matter for it, which are not all of a stage's params
- the function, and the source of every module of the project that it runs (`memo.code`)
- Python, and the installed versions of the libraries behind that code (`memo.versions`)

`build` takes from `.memo/` of the main repository what it finds there, and makes the rest on the
machine's cluster. The workspace, `dvc exp run --temp` and queue runs thus share one memo. The
result is what it would be without: `memo.store` says how that is made sure. What cannot be kept
(a full disk, a memo that may only be read) costs a warning and no more.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pipelines.core import cluster
from pipelines.core.memo import code, store
from pipelines.core.memo.store import Store
from pipelines.core.memo.versions import versions
from pipelines.core.shards import pieces
from pipelines.core.stage import Job
from pipelines.core.storage import state_folder

FORMAT = 1
"""Of what is hashed and of entries: another one finds nothing of this."""

T = TypeVar("T")


@dataclass(frozen=True)
class Task(Generic[T]):
    """One piece of a stage's work.

    Attributes:
        name: of the piece; no two of a stage have the same.
        content: stands for the content of all that is read for it, such as a SHA-256.
        item: what the function is given; only its `content` and `name` are part of the fingerprint,
            so that paths may be in it.
    """

    name: str
    content: str
    item: T


class _Work(NamedTuple):
    """A task to be done."""

    item: Any
    folder: Path
    fingerprint: str | None
    """None: the result cannot be kept."""


def build(
    job: Job[Any],
    write: Callable[[T, Path], None],
    tasks: Sequence[Task[T]],
    *,
    settings: Any = None,
    describe: str,
) -> list[Path]:
    """Have each task's piece in a folder below `job.out`: from the memo, or made by `write`.

    Args:
        job: the run.
        write: writes the piece of an item into an empty folder; importable, or a
            `functools.partial` of such whose bound values are functions, paths, or in `settings`.
        tasks: usually buckets.
        settings: a frozen dataclass of the settings that `write` depends on; None: on none.
        describe: what is counted, such as "buckets packed".

    Returns:
        The folders, in the order of `tasks`; `pieces.join` joins them.

    Raises:
        HeadraceError: the first one in the order of tasks that `write` raised.
    """
    memo = _memo()
    base = _base(job.stage, write, settings) if memo.max_bytes else None
    if base is None and memo.max_bytes:
        job.log.info("%s: not kept, since the function is of no module", describe)
    work = [
        _Work(task.item, pieces.folder_of(job.out, task.name), _fingerprint(base, task))
        for task in tasks
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        is_there = list(pool.map(functools.partial(_fetch, memo), work))
    missing = [one for one, there in zip(work, is_there, strict=True) if not there]
    if len(missing) < len(work):
        job.log.info("%s: %d of %d as before", describe, len(work) - len(missing), len(work))
    if missing:
        troubles = job.map(functools.partial(_make, write, memo), missing, describe=describe)
        for trouble in list(filter(None, troubles))[:1]:
            job.log.warning("the memo does not keep what was made: %s", trouble)
        if base is not None:
            memo.sweep()
    return [one.folder for one in work]


def digest(*parts: str | bytes) -> str:
    """One text that stands for several: a SHA-256 that no other parts give."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()


def _memo() -> Store:
    max_bytes = int(cluster.machine().memo_max_gib * (1 << 30))
    return store.opened(state_folder().resolve().with_name(".memo"), max_bytes)


def _base(stage: str, write: Callable[..., Any], settings: Any) -> str | None:
    """What the fingerprints of all tasks have in common; None where the code cannot be told."""
    modules = code.modules_of(write)
    if modules is None:
        return None
    found = code.read(modules)
    told = {
        "format": FORMAT,
        "stage": stage,
        "functions": code.names_of(write),
        "code": found.digest,
        "versions": versions(found.libraries),
        "settings": None if settings is None else asdict(settings),
    }
    return digest(json.dumps(told, sort_keys=True))


def _fingerprint(base: str | None, task: Task[Any]) -> str | None:
    return None if base is None else digest(base, task.name, task.content)


def _fetch(memo: Store, work: _Work) -> bool:
    """Take a piece from the memo; whether it was there."""
    if work.fingerprint is None or not (memo.folder / work.fingerprint).exists():
        return False
    try:
        with pieces.whole(work.folder) as piece:
            memo.fetch(work.fingerprint, piece)
    except store.Missing:
        return False
    return True


def _make(write: Callable[[Any, Path], None], memo: Store, work: _Work) -> str:
    """Make a piece and keep it; why it could not be kept, or nothing."""
    trouble = ""
    with pieces.whole(work.folder) as piece:
        write(work.item, piece)
        # Before the piece takes its place: from then on its files may be moved away.
        if work.fingerprint is not None:
            try:
                memo.put(work.fingerprint, piece)
            except OSError as error:
                trouble = f"{error.strerror or error} ({error.filename or memo.folder})"
    return trouble
