"""The version of the data at a git revision: from git, and the DVC cache or remote.

Nothing is checked out. dvc.yaml, params.yaml and dvc.lock say which data the revision holds; DVC
opens each of their files where it finds it, first in the cache, then in the remote.
"""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc.api import DVCFileSystem
from dvc.config import Config

from pipelines.commands.diff.version import File, Version
from pipelines.core import project
from pipelines.core.errors import HeadraceError, did_you_mean
from pipelines.core.project import Stage
from pipelines.core.route import Route, digest, out_of, read_lock, route
from pipelines.core.typed import read_yaml

_READ = ("dvc.yaml", "params.yaml", "dvc.lock")


@dataclass(frozen=True)
class _Revision:
    """What git has of a project at a commit."""

    name: str
    files: Any  # DVC's file system of the commit
    route: Route
    params: Mapping[str, Any]
    lock: Mapping[str, Any]

    def out(self, stage: Stage) -> str:
        """The folder that a stage writes."""
        return project.resolved(out_of(stage), self.params)


def version(rev: str) -> Version:
    """The data at a revision.

    Args:
        rev: anything that git takes for a commit, or the name of a DVC experiment.

    Raises:
        HeadraceError: no repository, no such revision, nothing built there, or its data are neither
            in the cache nor in the remote.
    """
    commit = commit_of(rev)
    at = _read(f"{rev} ({commit[:7]})" if not commit.startswith(rev) else commit[:7], commit)
    listed = {stage.name: _listed(at, stage) for stage in at.route.rejecting}
    last = at.route.manifests[-1]
    manifest = {
        int(Path(path).stem): file
        for path, file in listed[last.name].items()
        if path.startswith("manifest/")
    }
    if not manifest:
        raise _missing(at, f"{at.out(last)}/manifest", "nothing")
    rejected = {}
    for stage in at.route.rejecting:
        if "rejected.parquet" not in listed[stage.name]:
            raise _missing(at, f"{at.out(stage)}/rejected.parquet", "nothing")
        rejected[stage.name] = listed[stage.name]["rejected.parquet"]
    return Version(
        name=at.name,
        dataset=str(at.params.get("dataset")),
        digest=_digest(at),
        manifest=manifest,
        rejected=rejected,
        late=frozenset({at.route.shard.name, at.route.decode.name}),
    )


def commit_of(rev: str) -> str:
    """The commit that a revision or experiment names.

    Raises:
        HeadraceError: this is no git repository, or there is no such revision.
    """
    if _git("rev-parse", "--git-dir") is None:
        raise HeadraceError(
            "This is not a git repository, so there are no revisions to compare.",
            where=str(Path.cwd()),
            fix="git init && git add -A && git commit, then dvc repro and commit dvc.lock",
        )
    # `--end-of-options`: a revision must not be taken for an option.
    found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}")
    if found:
        return found
    lines = (_git("for-each-ref", "--format=%(refname) %(objectname)") or "").splitlines()
    refs: dict[str, str] = dict(line.split(" ", 1) for line in lines)
    experiments = {name.rpartition("/")[2]: name for name in refs if name.startswith("refs/exps/")}
    if rev in experiments:
        return refs[experiments[rev]]
    short = [name.split("/", 2)[-1] for name in refs if not name.startswith("refs/exps/")]
    raise HeadraceError(
        f"git knows no revision {rev!r}." + did_you_mean(rev, [*short, *experiments, "HEAD"]),
        expected="a commit, branch or tag, or the name of a DVC experiment",
        fix="git log --oneline (in a shallow clone: git fetch --unshallow)",
    )


def _git(*arguments: str) -> str | None:
    """What a git command prints; None where it fails."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _read(name: str, commit: str) -> _Revision:
    """The stages, params and lock of a commit."""
    with _explained(name, ".dvc"):
        files = _files(commit)
        found = {path: files.read_text(f"/{path}") for path in _READ if files.exists(f"/{path}")}
    for path in _READ:
        if path not in found:
            raise _not_built(name, f"there is no {path}")
    with tempfile.TemporaryDirectory() as folder:
        for path, text in found.items():
            Path(folder, path).write_text(text, encoding="utf-8")
        try:
            return _Revision(
                name,
                files,
                route(project.read(Path(folder, "dvc.yaml"))),
                read_yaml(Path(folder, "params.yaml")),
                read_lock(Path(folder, "dvc.lock")),
            )
        except HeadraceError as error:
            raise HeadraceError(
                f"The pipeline at {name} cannot be read: {error.what}",
                where=str(error.where).replace(f"{folder}/", ""),
                expected=error.expected,
                found=error.found,
                fix="compare with a revision whose dvc.yaml this version understands",
            ) from None


def _files(commit: str) -> Any:
    """DVC's file system of a commit, with the cache and the default remote of today."""
    today = Config.from_cwd()
    folder = today["cache"].get("dir")
    return DVCFileSystem(
        rev=commit,
        remote=today["core"].get("remote"),
        config={"cache": {"dir": str(folder)}} if folder else None,
    )


def _listed(at: _Revision, stage: Stage) -> dict[str, File]:
    """The files of a stage's out, by path below it, as DVC lists them."""
    folder = at.out(stage)
    if digest(at.lock, stage.name, "outs", folder) is None:
        raise _not_built(at.name, f"dvc.lock has no {folder} of stage {stage.name}")
    with _explained(at.name, folder):
        try:
            found = at.files.find(f"/{folder}", detail=True)
        except Exception as error:
            # DVC tells of a folder whose list is missing in the words of its own index.
            if isinstance(error.__cause__, FileNotFoundError):
                raise _missing(at, folder, "no list of its files") from None
            raise
    listed = {}
    for path, info in found.items():
        below = path.removeprefix(f"/{folder}").lstrip("/")
        if below and info.get("md5"):
            load = functools.partial(_load, at, path)
            listed[below] = File(f"{path.lstrip('/')} at {at.name}", info["md5"], load)
    if not listed:
        raise _missing(at, folder, "no list of its files")
    return listed


def _load(at: _Revision, path: str) -> bytes:
    with _explained(at.name, path.lstrip("/")):
        try:
            data: bytes = at.files.read_bytes(path)
        except FileNotFoundError:
            raise _missing(at, path.lstrip("/"), "no such object") from None
    return data


@contextmanager
def _explained(name: str, path: str) -> Iterator[None]:
    """Tell what a remote answers in our own words; each kind of remote has errors of its own."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        cause = error.__cause__ or error
        text = str(cause) or type(cause).__name__
        raise HeadraceError(
            f"The data of {name} cannot be read.",
            where=path,
            found=text.splitlines()[0],
            fix="dvc fetch --all-commits (it says more of what the remote answers)",
        ) from error


def _digest(at: _Revision) -> str | None:
    """The dataset version that the report of `decode` has, which is in git."""
    report = at.route.decode.arguments.get("report")
    try:
        text = at.files.read_text(f"/{project.resolved(report or '', at.params)}")
        found = json.loads(text).get("dataset_version")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def _not_built(name: str, found: str) -> HeadraceError:
    return HeadraceError(
        f"No data were built at {name}, or they were not committed.",
        found=found,
        fix="dvc repro, then git add dvc.lock datasets/*/reports && git commit;"
        " or name another revision",
    )


def _missing(at: _Revision, path: str, found: str) -> HeadraceError:
    folders = " ".join(dict.fromkeys(at.out(stage) for stage in at.route.rejecting))
    has_remote = bool(Config.from_cwd()["core"].get("remote"))
    if has_remote:
        fix = f"where it was built: dvc push --all-commits {folders}"
    else:
        fix = (
            "name a remote that holds it: dvc remote add --default NAME URL,"
            f" then dvc fetch --all-commits {folders}; or build it: git checkout, dvc repro"
        )
    where = "neither in the DVC cache nor in the remote"
    return HeadraceError(
        f"The data of {at.name} are not here.",
        where=path,
        found=f"{found}: {where if has_remote else 'not in the DVC cache, and there is no remote'}",
        fix=fix,
    )
