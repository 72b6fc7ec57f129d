"""The runs that git remembers: commits and DVC experiments whose dvc.lock names the same data.

One version of the data holds the same samples wherever it was trained on, so the MD5 of the decoded
folder says whether a run saw a sample of its training split. Reads git objects alone: two commands,
and only locks that name the data are parsed. Looks at the MAX_COMMITS newest changes of dvc.lock.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipelines.core.project import Stage
from pipelines.core.route import digest

MAX_COMMITS = 1000
_EXPERIMENTS = "refs/exps/"


@dataclass(frozen=True)
class Run:
    """A run of a stage that git remembers.

    Attributes:
        name: of the experiment, or the short commit.
        commit: in which its dvc.lock is.
        made: what it made: MD5 by path.
    """

    name: str
    commit: str
    made: tuple[tuple[str, str], ...]


def runs_on(stage: Stage, path: str, md5: str) -> list[Run]:
    """The runs of a stage on data of that MD5, the newest first; runs with equal results are one.

    Args:
        stage: one that reads the data.
        path: of the data, as in dvc.lock.
        md5: of the data.
    """
    found: dict[tuple[tuple[str, str], ...], Run] = {}
    names = _names()
    for commit, text in _locks():
        if md5 in text:
            lock = _stages(text)
            if digest(lock, stage.name, "deps", path) == md5:
                made = made_by(stage, lock)
                found.setdefault(made, Run(names.get(commit, commit[:7]), commit, made))
    return list(found.values())


def made_by(stage: Stage, lock: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """What a stage's entry of dvc.lock says that it made."""
    digests = ((path, digest(lock, stage.name, "outs", path)) for path in sorted(stage.outs))
    return tuple((path, md5) for path, md5 in digests if md5 is not None)


def _names() -> dict[str, str]:
    """Names of experiments by commit; not those that DVC keeps for itself (`exec`)."""
    lines = _git("for-each-ref", "--format=%(objectname) %(refname)", _EXPERIMENTS).splitlines()
    pairs = [line.split(" ", 1) for line in lines]
    return {commit: name.rpartition("/")[2] for commit, name in pairs if name.count("/") == 4}


def _locks() -> Iterator[tuple[str, str]]:
    """Commit and text of each dvc.lock in git, the newest first."""
    commits = _git(
        "log",
        f"--glob={_EXPERIMENTS}*",
        "--branches",
        "--tags",
        "HEAD",
        f"--max-count={MAX_COMMITS}",
        "--format=%H",
        "--",
        "dvc.lock",
    ).split()
    # Relative: the project may lie below the root of the repository.
    wanted = "".join(f"{commit}:./dvc.lock\n" for commit in commits)
    answer = _git("cat-file", "--batch", given=wanted).encode(errors="surrogateescape")
    for commit in commits:
        head, _, answer = answer.partition(b"\n")
        if head.endswith(b" missing"):  # that commit removed it
            continue
        size = int(head.rpartition(b" ")[2])
        yield commit, answer[:size].decode(errors="replace")
        answer = answer[size + 1 :]


def _stages(text: str) -> Mapping[str, Any]:
    try:
        document = YAML(typ="safe").load(text)
    except YAMLError:
        return {}
    stages = document.get("stages") if isinstance(document, dict) else None
    return stages if isinstance(stages, dict) else {}


def _git(*arguments: str, given: str = "") -> str:
    """What a git command prints; nothing where there is no git, no repository or no commit."""
    try:
        done = subprocess.run(
            ["git", *arguments], input=given.encode(), capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.decode(errors="surrogateescape")
