"""A second copy of checkpoints behind any URL that fsspec opens: `backup_url` in cluster.yaml.

For machines whose disk may vanish with them. After a checkpoint is whole on the local disk its
files are copied to `<url>/<run>/step-N/`, the manifest last: without it there is no copy. The
ledger of replaced samples is copied before, to `<url>/<run>/`. When a run begins, a copy that is
newer than all local checkpoints is brought back, and verified like those; so is the ledger. A
store that does not answer is told in the log, and training goes on.

Costs one upload a checkpoint, in the background; one that is due meanwhile waits for its turn.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from trainers import snapshot, substituted

log = logging.getLogger("headrace.checkpoint")

_FILES = (snapshot.STATE, snapshot.META, snapshot.MANIFEST)


@dataclass(frozen=True)
class Backup:
    """The copies of one run.

    Args:
        url: of a folder, which may be made; credentials come from the environment.
        folder: the run's own on the local disk.
    """

    url: str
    folder: Path

    def put(self, step: int) -> None:
        """Copy the local checkpoint of `step`, and drop copies of what is no longer kept here."""
        with self._told(f"checkpoint of step {step} has no copy"):
            filesystem, root = self._open()
            self._put_ledger(filesystem, root)
            name = f"step-{step:08d}"
            filesystem.makedirs(f"{root}/{name}", exist_ok=True)
            for file in _FILES:
                filesystem.put_file(str(self.folder / name / file), f"{root}/{name}/{file}")
            kept = {path.name for path in snapshot.found(self.folder)}
            self._drop(it for it in self._names(filesystem, root) if it not in kept)

    def bring_back(self) -> None:
        """Bring the newest copy to the local disk, if it is newer than all that is there."""
        with self._told("copies of checkpoints, if there are any, are not used"):
            filesystem, root = self._open()
            self._bring_ledger(filesystem, root)
            here = max((_step(path.name) for path in snapshot.found(self.folder)), default=-1)
            for name in sorted(self._names(filesystem, root), key=_step, reverse=True):
                if _step(name) <= here:
                    return
                if self._bring(filesystem, f"{root}/{name}", name):
                    log.info("brought the checkpoint %s back from %s", name, self.url)
                    return

    def remove(self) -> None:
        """Remove all copies: the run has ended."""
        with self._told("copies of its checkpoints are left"):
            filesystem, root = self._open()
            self._drop(self._names(filesystem, root))
            for path in filesystem.glob(f"{root}/{substituted.PATTERN}"):
                filesystem.rm_file(path)

    def _put_ledger(self, filesystem: Any, root: str) -> None:
        filesystem.makedirs(root, exist_ok=True)
        for path in sorted(self.folder.glob(substituted.PATTERN)):
            filesystem.put_file(str(path), f"{root}/{path.name}")

    def _bring_ledger(self, filesystem: Any, root: str) -> None:
        """Bring the files of processes that noted elsewhere; a file that is here is no older."""
        for source in filesystem.glob(f"{root}/{substituted.PATTERN}"):
            final = self.folder / str(source).rsplit("/", 1)[-1]
            if not final.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                temporary = final.with_suffix(".tmp")
                filesystem.get_file(source, str(temporary))
                temporary.rename(final)

    def _bring(self, filesystem: Any, source: str, name: str) -> bool:
        temporary = self.folder / f"{name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for file in _FILES:
            filesystem.get_file(f"{source}/{file}", str(temporary / file))
        final = temporary.rename(self.folder / name)
        try:
            snapshot.read(final)
        except snapshot.Damaged as reason:
            log.error("COPY NOT USED: %s of %s: %s", name, self.url, reason)  # noqa: TRY400
            shutil.rmtree(final)
            return False
        return True

    def _open(self) -> tuple[Any, str]:
        filesystem, root = url_to_fs(self.url)
        # What others have written since must be seen.
        filesystem.invalidate_cache()
        return filesystem, f"{root.rstrip('/')}/{self.folder.name}"

    def _names(self, filesystem: Any, root: str) -> list[str]:
        """The copies that are whole, by their name."""
        found = filesystem.glob(f"{root}/step-*/{snapshot.MANIFEST}")
        names = (str(path).rsplit("/", 2)[-2] for path in found)
        return [name for name in names if re.fullmatch(r"step-\d{8,}", name)]

    def _drop(self, names: Iterable[str]) -> None:
        filesystem, root = self._open()
        for name in names:
            # First the manifest: what is left of a copy half removed does not count as one.
            filesystem.rm_file(f"{root}/{name}/{snapshot.MANIFEST}")
            filesystem.rm(f"{root}/{name}", recursive=True)

    @contextmanager
    def _told(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - of any of fsspec's drivers: a copy is a second one
            log.error(  # noqa: TRY400 - told to people, who need no traceback
                "NO BACKUP at %s: %s. Training goes on; %s: %s",
                *(self.url, type(error).__name__, consequence, error),
            )


def _step(name: str) -> int:
    return int(name.removeprefix("step-").removesuffix(".old"))
