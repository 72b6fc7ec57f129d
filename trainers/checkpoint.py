"""Checkpoints that survive: a run killed at any moment resumes from the newest whole one.

Each is a folder that is there in full or not at all and is verified before it is used
(`trainers.snapshot`). It lies outside DVC's outs, which DVC removes before a stage runs, in a
folder named by a fingerprint of data, params, code and libraries: a run can never resume the state
of another.

`save` costs the step a copy of the tensors into host memory; writing, hashing and flushing happen
in one background thread, and a save that comes before the last one is written waits for it (at most
one copy is held). Loading costs reading twice, once to verify.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from trainers import snapshot
from trainers.backup import Backup
from trainers.environment import environment
from trainers.weights import host_copy

log = logging.getLogger("headrace.checkpoint")

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def fingerprint(*, dataset_version: str, params: Mapping[str, Any], code: Mapping[str, str]) -> str:
    """What a run is, as 64 hexadecimal digits: equal for two runs only if one may resume the other.

    Covers the data, the params that change the weights, the code (as `trainers.lineage.code` tells
    it) and the versions of the libraries that compute. Threads, CPU and GPU are not in it: a run
    may go on on another machine, and says so (`trainers.environment.changes`).
    """
    here = environment()
    parts = {
        "format": snapshot.FORMAT,
        "dataset_version": dataset_version,
        "params": params,
        "code": code,
        "libraries": {name: here[name] for name in ("python", "packages")},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def state_folder(run: str) -> Path:
    """Where the run of this fingerprint keeps its state: `.state/<fingerprint>` in the project.

    DVC sets `DVC_ROOT` to the main repository, also for experiments that run in a copy of it; by
    hand it is the nearest folder above that has `.dvc`, or else the current one.
    """
    here = Path.cwd()
    above = (folder for folder in (here, *here.parents) if (folder / ".dvc").is_dir())
    return Path(os.environ.get("DVC_ROOT") or next(above, here)) / ".state" / run


def finished_folder(folder: Path) -> Path:
    """Where a run that has ended leaves what `keep_every` kept; `verify` begins there."""
    return folder.parent / "finished" / folder.name


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was verified.

    Attributes:
        step: the step after which it was taken.
        tensors: in CPU memory, contiguous, as saved.
        meta: what was given to `save`, after a round through JSON.
    """

    step: int
    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, of which the last `keep_last` stay.

    One process saves at a time (of several ranks, one); any number may read. A context manager.

    Args:
        folder: the run's own, from `state_folder`; made when first needed. Its name is the run:
            what was saved under another name is refused.
        keep_last: how many to keep, at least 1.
        keep_every: keep those of its multiples too; 0: none.
        backup: where to keep copies.
    """

    def __init__(
        self, folder: Path, keep_last: int, keep_every: int = 0, backup: Backup | None = None
    ) -> None:
        if keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, not {keep_last}")
        self.folder = folder
        self.keep_every = keep_every
        self._keep = snapshot.Keep(keep_last, keep_every)
        self._backup = backup
        self._staging: dict[str, Tensor] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        meta: Mapping[str, Any],
        *,
        keep_up_to: int = 0,
    ) -> None:
        """Take a checkpoint; returns as soon as the tensors are copied.

        Replaces one of the same step, and drops all of later steps: they belong to a future that a
        rollback, or a damaged newest checkpoint, has undone. A full disk is told in the log; the
        checkpoints before stay, and training goes on.

        Args:
            step: at least 0.
            tensors: of any device, layout and strides; may share memory with each other.
            meta: JSON-able.
            keep_up_to: keep the newest up to this step, too.

        Raises:
            OSError: the save before this one failed, for another reason than a full disk.
        """
        text = json.dumps(meta, sort_keys=True)
        self.wait()
        # Memory that has been written to before takes half the time.
        self._staging = host_copy(tensors, self._staging)
        keep = self._keep._replace(up_to=keep_up_to)
        self._pending = self._thread.submit(self._write_or_tell, step, text, keep)

    @property
    def is_busy(self) -> bool:
        """Whether a save would have to wait."""
        return self._pending is not None and not self._pending.done()

    def wait(self) -> None:
        """Return when nothing is left to write; raises what `save` raises."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def newest(self, last_step: int | None = None) -> Loaded | None:
        """The newest checkpoint that is whole, or `None`; a loud line about each that is not.

        Args:
            last_step: of those up to this one; None: of all.
        """
        self.wait()
        found = snapshot.found(self.folder, last_step)
        for path in found:
            try:
                return Loaded(*snapshot.read(path))
            except snapshot.Damaged as reason:
                log.error("CHECKPOINT NOT USED: %s: %s", path, reason)  # noqa: TRY400 - for people
        if found:
            log.error(
                "NO CHECKPOINT IS WHOLE in %s: the run begins from its first step", self.folder
            )
        return None

    def bring_back(self) -> None:
        """Bring a newer copy back from the backup, if there are one and the other."""
        if self._backup:
            self._backup.bring_back()

    def finish(self) -> None:
        """Remove all: the run has ended; what `keep_every` kept goes to `finished_folder`."""
        self.wait()
        if self._backup:
            self._backup.remove()
        snapshot.prune(self.folder, 1 << 62, snapshot.Keep(0, self.keep_every))
        target = finished_folder(self.folder)
        shutil.rmtree(target, ignore_errors=True)
        if snapshot.found(self.folder):
            target.parent.mkdir(parents=True, exist_ok=True)
            self.folder.rename(target)
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Finish what is being written, and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write_or_tell(self, step: int, meta: str, keep: snapshot.Keep) -> None:
        try:
            snapshot.clean(self.folder)
            # Before and after: the undone future goes even if there is no space for this one.
            snapshot.prune(self.folder, step, keep)
            snapshot.write(self.folder, step, self._staging, meta)
            snapshot.prune(self.folder, step, keep)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            snapshot.clean(self.folder)
            log.error(  # noqa: TRY400 - told to people, who need no traceback
                "NO SPACE FOR A CHECKPOINT of step %d in %s: %s. Training goes on; killed now, it "
                "would resume from an earlier one. Free some space",
                *(step, self.folder, error.strerror),
            )
            return
        if self._backup:
            self._backup.put(step)
