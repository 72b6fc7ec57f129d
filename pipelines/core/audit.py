"""Which of the project's files a stage opened: what proves that its deps are complete.

DVC trusts the list of deps; a file that is read and not listed changes results without a re-run.
While a stage runs, Python's own audit events note every file below the repository that its process
opens, and the list is left in `.state/opened/<stage>.json` for `python -m pipelines check`, beside
the run's arguments: with others it opens other files. Not seen: files opened inside native code
(Arrow's memory maps, DALI) and in other processes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.core.storage import state_folder, write_text

_PRIVATE = (
    ".venv",
    ".git",
    ".dvc",
    ".state",
    ".memo",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
)


class Opened:
    """Notes files read below `root` until the process ends: an audit hook cannot be removed."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root.resolve()}{os.sep}"
        self._paths: set[str] = set()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open":
            return
        path, mode, flags = arguments
        # Reads alone; no mode means os.open(), by which folders are flushed to the disk.
        if isinstance(path, str) and mode and isinstance(flags, int) and not flags & os.O_ACCMODE:
            self._paths.add(path)

    def paths(self) -> list[str]:
        """Relative paths, sorted; compiled modules are named by their source."""
        found = set()
        for path in tuple(self._paths):
            # Not resolved: a link into the DVC cache is still the project's file.
            whole = os.path.abspath(path)  # noqa: PTH100 - Path.resolve() follows links
            if not whole.startswith(self._root):
                continue
            relative = whole.removeprefix(self._root)
            if relative.endswith(".pyc"):
                relative = importlib.util.source_from_cache(relative)
            parts = Path(relative).parts
            if (
                parts
                and parts[0] not in _PRIVATE
                and not any(part.startswith((".tmp-", ".lock-")) for part in parts)
            ):
                found.add(relative)
        return sorted(found)

    def save(self, stage: str, argv: Sequence[str]) -> None:
        """Leave the list where `check` finds it, with the arguments that the stage was given."""
        noted = {"arguments": list(argv), "opened": self.paths()}
        write_text(opened_file(stage), json.dumps(noted, indent=2) + "\n")


def opened_file(stage: str) -> Path:
    """Where the list of a stage's last run lies."""
    return state_folder() / "opened" / f"{stage}.json"
