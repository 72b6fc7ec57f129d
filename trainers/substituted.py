"""The ledger of a run: which damaged samples were replaced, and by which.

Each process appends to a file of its own beside the checkpoints before the batch is used, so what
was replaced before a kill is still known at the end. The entries are a function of the data and the
params, whatever the number of ranks and kills.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from trainers.reader.substitute import Substitution

log = logging.getLogger("headrace.train")

PATTERN = "substituted-*.jsonl"
"""Of the names of a ledger's files."""


class Ledger:
    """Notes substitutions below `folder`; safe to use from threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / PATTERN.replace("*", uuid4().hex)
        self._lock = threading.Lock()

    def note(self, one: Substitution) -> None:
        """Keep one, also through a kill."""
        log.warning(
            "A DAMAGED SAMPLE IS REPLACED: %s, which the sample with key %r stands in for",
            *(one.where, one.substitute_key),
        )
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write(f"{json.dumps(one._asdict())}\n")
                file.flush()
                os.fsync(file.fileno())

    def entries(self) -> list[Substitution]:
        """Those of all processes of the run, before and after kills, by sample id; each once."""
        found: dict[int, Substitution] = {}
        for path in self._folder.glob(PATTERN):
            for line in path.read_text().splitlines():
                try:
                    one = Substitution(**json.loads(line))
                except ValueError:  # The process was killed while it wrote: it will be noted again.
                    continue
                found[one.sample] = one
        return [found[sample] for sample in sorted(found)]


def record(entries: Sequence[Substitution]) -> dict[str, Any]:
    """For the lineage: keys and ids, and no paths of this machine."""
    rows = [
        {
            "key": one.key,
            "sample": one.sample,
            "substitute_key": one.substitute_key,
            "substitute": one.substitute,
        }
        for one in entries
    ]
    return {"substituted": rows} if rows else {}
