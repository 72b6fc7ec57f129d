"""Does DVC know every file that a stage is told of or opened, and git and DVC what to leave out?"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

from pipelines.commands.check.finding import Finding, Kind
from pipelines.commands.check.tree import DVC_YAML, LOCK, PARAMS_YAML, Tree
from pipelines.core import card
from pipelines.core.audit import opened_file
from pipelines.core.errors import HeadraceError
from pipelines.core.project import Stage, is_covered, resolved

_MACHINE = ("cluster.yaml", DVC_YAML, "dvc.lock", PARAMS_YAML, ".dvcignore")
"""What any stage may open: where it runs, and what DVC reads for itself."""
_NEVER_DATA = (
    "pipelines/__pycache__/x.pyc",
    "datasets/x/.tmp-x/y",
    "datasets/x/.lock-x",
    ".state/x",
    ".memo/x",
)
_NEVER_IN_GIT = (*_NEVER_DATA, "cluster.yaml")
_ALWAYS_IN_GIT = (DVC_YAML, "dvc.lock", PARAMS_YAML, LOCK)


def findings(tree: Tree) -> Iterator[Finding]:
    """All that is undeclared, or ignored where it should not be and the other way round."""
    for stage in tree.stages:
        yield from _arguments(stage)
        yield from _opened(stage, tree)
        for path in stage.outs:
            if path in stage.uncached:
                where = f"{DVC_YAML}:stages.{stage.name}.outs"
                fix = "remove `cache: false`, or list it under metrics or plots"
                yield Finding(where, Kind.UNCACHED_OUT, "outs in DVC's cache", path, fix)
    yield from _unhashable(tree)
    yield from _git(tree)
    yield from _dvcignore()


def _arguments(stage: Stage) -> Iterator[Finding]:
    where = f"{DVC_YAML}:stages.{stage.name}.cmd"
    for name, path in stage.arguments.items():
        reads = name in stage.reads
        declared = stage.deps if reads else stage.writes
        # A folder may be declared in parts: that no other part is read is judged by what is opened.
        if is_covered(path, declared) or any(is_covered(part, [path]) for part in declared):
            continue
        kind = "deps" if reads else "outs" if name == "out" else "metrics"
        expected = f"--{name} to be declared under {kind}"
        yield Finding(where, Kind.UNDECLARED_PATH, expected, path, f"add `- {path}` to {kind}")


def is_known(stage: Stage, tree: Tree) -> bool:
    """Whether there is a list of what this stage opened, with these arguments and this code."""
    listed = opened_file(stage.name)
    if stage.module not in tree.sources.files or not listed.is_file():
        return False
    files = [tree.sources.files[module] for module in tree.code_of(stage)]
    if listed.stat().st_mtime < max(path.stat().st_mtime for path in files):
        return False
    words = [word for name, path in stage.arguments.items() for word in (f"--{name}", path)]
    return _noted(stage)["arguments"] == [resolved(word, tree.values) for word in words]


def _noted(stage: Stage) -> dict[str, list[str]]:
    """What the stage's last run left (see `pipelines.core.audit`)."""
    noted: dict[str, list[str]] = json.loads(opened_file(stage.name).read_text())
    return noted


def _opened(stage: Stage, tree: Tree) -> Iterator[Finding]:
    if not is_known(stage, tree):
        return
    # Code that it imports is judged by its imports.
    code = {str(tree.sources.files[module]) for module in tree.code_of(stage)}
    covers = (*stage.deps, *stage.writes, *_MACHINE, *code)
    unknown = [
        path
        for path in _noted(stage)["opened"]
        if _is_projects(path) and not is_covered(path, covers)
    ]
    pinned = _pinned(stage, tree) if unknown else []
    for path in unknown:
        if is_covered(path, pinned):
            continue
        yield Finding(
            f"{DVC_YAML}:stages.{stage.name}.deps",
            Kind.UNDECLARED_FILE,
            "every file that it opens",
            f"{path}, opened by its last run and not listed",
            f"add `- {path}` or a folder above it (a source: its sha256 to the card)",
        )


def _pinned(stage: Stage, tree: Tree) -> list[str]:
    """Sources beside the card whose content the card names: it is a dep, so they are known too."""
    path = tree.resolved(stage.reads.get("card", "")) if "card" in stage.reads else None
    if path is None:
        return []
    sources = [source for source in card.load(path).sources if source.sha256]
    return [os.path.normpath(path.parent / source.url) for source in sources]


def _is_projects(path: str) -> bool:
    """Whether it is a file (not a folder that was flushed) and not part of the Python in use."""
    file = Path(path)
    is_pythons = file.absolute().is_relative_to(sys.prefix) or "__pycache__" in file.parts
    return file.is_file() and not is_pythons


def _unhashable(tree: Tree) -> Iterator[Finding]:
    """What lies in a dep and is no file: DVC reads all of it before the stage can say a word."""
    deps = {dep for stage in tree.stages for dep in stage.deps if not is_covered(dep, tree.written)}
    roots = {path for dep in deps if (path := tree.resolved(dep)) is not None}
    for root in sorted(roots):
        entries = ((folder, [*below, *names]) for folder, below, names in os.walk(root))
        for path in (Path(folder, name) for folder, names in entries for name in names):
            found = _obstacle(path, root)
            if found:
                where = str(path).encode("utf-8", "backslashreplace").decode()
                expected, fix = "a file that DVC can read", "remove, rename or replace it"
                yield Finding(where, Kind.UNHASHABLE_FILE, expected, found, fix)


def _obstacle(path: Path, root: Path) -> str:
    """What keeps DVC from hashing a file or from walking a folder; empty if nothing does."""
    if any("\ud800" <= char <= "\udfff" for char in path.name):  # Bytes that were no UTF-8.
        return "a name that is not UTF-8"
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"a link to nothing: {error.strerror}" if path.is_symlink() else str(error.strerror)
    if stat.S_ISDIR(mode):
        leads_out = path.is_symlink() and not path.resolve().is_relative_to(root.resolve())
        return "a link to a folder elsewhere, which DVC does not follow" if leads_out else ""
    return "" if stat.S_ISREG(mode) else "a pipe, socket or device"


def _git(tree: Tree) -> Iterator[Finding]:
    cached: dict[str, str] = {}
    kept = dict.fromkeys(_ALWAYS_IN_GIT, "")
    for stage in tree.stages:
        for path in stage.writes:
            if (file := tree.resolved(path)) is not None:
                (kept if path in stage.uncached else cached)[str(file)] = stage.name
    ignored = _ignored_by_git([*cached, *kept, *_NEVER_IN_GIT])
    for path in [*cached, *_NEVER_IN_GIT]:
        if path not in ignored:
            expected = f"a line that fits {path}"
            fix = f"add one, such as `/{path}`" if path in cached else "add it again"
            yield Finding(".gitignore", Kind.UNIGNORED_FILE, expected, "none", fix)
    for path in kept:
        if path in ignored:
            fix = "let .gitignore leave it out" + (
                ", or remove `cache: false`" if kept[path] else ""
            )
            yield Finding(
                ".gitignore", Kind.IGNORED_FILE, f"{path} in git", "a line that fits it", fix
            )


def _ignored_by_git(paths: Iterable[str]) -> set[str]:
    result = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin", "-z"],
        input="\0".join(paths),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode > 1:
        raise HeadraceError(
            "git cannot say what it ignores.", found=result.stderr.strip(), fix="git init"
        )
    return set(result.stdout.split("\0")) - {""}


def _dvcignore() -> Iterator[Finding]:
    file = Path(".dvcignore")
    spec = GitIgnoreSpec.from_lines(file.read_text().splitlines() if file.is_file() else [])
    for path in _NEVER_DATA:
        if not spec.match_file(path):
            expected = f"a line that fits {path}"
            yield Finding(".dvcignore", Kind.UNIGNORED_FILE, expected, "none", "add it again")
