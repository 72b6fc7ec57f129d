"""Stage `ingest`: what the card's sources name -> raw/, as it came.

Files are copied from this machine or downloaded from wherever fsspec has a driver for, side by
side, and compared with the sizes and checksums of the card. raw/ is replaced as a whole or not at
all: a source that is gone, changes while it is read or is not what the card says leaves the old one
as it was. A run that was killed goes on where it was; what an earlier run brought, and its server
says is still the same, is not downloaded again.

A local source must be seen by DVC, or stated in the card by its checksum: it lies in `source/`
beside the card (or that is a link to it), or it has a `sha256`.

Params: `max_attempts`, `timeout_s`. Costs the reading and writing of every byte, and one SHA-256.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field

from pipelines.core import card, stage
from pipelines.core.errors import HeadraceError
from pipelines.core.params import params
from pipelines.core.report import Json, Report
from pipelines.core.sources.fetch import Fetched, Folders, Item, fetch
from pipelines.core.sources.plan import Plan, check_places, check_same, check_watched, plan
from pipelines.core.sources.remote import Patience
from pipelines.core.stage import Job
from pipelines.core.storage import state_folder, write_text

T = TypeVar("T")
R = TypeVar("R")

_AT_ONCE = 8  # Files in one task: waiting for servers takes no processor.
_GROUP_FILES, _GROUP_BYTES = 256, 256 << 20
_LEDGER = "ledger.json"


@params
class Params:
    """How long to try."""

    max_attempts: Annotated[int, Field(ge=1, le=100)]
    """How often a read from a server is tried, with growing pauses between."""
    timeout_s: Annotated[float, Field(gt=0, le=3600)]
    """Seconds without a byte after which a connection counts as dead and is tried again."""


def run(job: Job[Params]) -> Report:
    """Bring all sources of the card into raw/."""
    path = job.inputs["card"]
    told = card.load(path)
    patience = Patience(job.params.max_attempts, job.params.timeout_s)
    for index, source in enumerate(told.sources):
        where = f"{path}:sources.{index}.url"
        check_watched(source, where, job.inputs["source"], path.parent)
    look = partial(plan, folder=path.parent, patience=patience)
    with _state(job, path.parent.name) as state:
        previous = job.out.with_name(job.out.name.removeprefix(".tmp-"))
        folders = Folders(job.out, previous, state)
        plans = _side_by_side(look, told.sources)
        check_places(plans)
        fetched = _fetch_all(job, plans, folders, patience)
        for before, after in zip(plans, _side_by_side(look, told.sources), strict=True):
            check_same(before, after)
        accounts = {one.source.url: _account(one, fetched) for one in plans}
        _remember(state, fetched)
    return {
        "num_files": len(fetched),
        "num_bytes": sum(one.stored_num_bytes for one in fetched.values()),
        "sources": accounts,
    }


def _fetch_all(
    job: Job[Params], plans: Sequence[Plan], folders: Folders, patience: Patience
) -> dict[Item, Fetched]:
    ledger = _ledger(folders.state)
    work = [(item, ledger.get(item.identity)) for plan in plans for item in plan.items]
    groups = list(_groups(work))
    bring = partial(_bring, folders=folders, patience=patience)
    brought = job.map(bring, groups, describe="groups of files brought")
    results = [one for group in brought for one in group]
    return {item: one for (item, _), one in zip(work, results, strict=True)}


def _groups(
    work: Sequence[tuple[Item, Fetched | None]],
) -> Iterator[list[tuple[Item, Fetched | None]]]:
    """Neighbours, as many as make a task worth its while."""
    group: list[tuple[Item, Fetched | None]] = []
    num_bytes = 0
    for item, known in work:
        group.append((item, known))
        num_bytes += item.file.num_bytes or 0
        if len(group) >= _GROUP_FILES or num_bytes >= _GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _bring(
    group: Sequence[tuple[Item, Fetched | None]], *, folders: Folders, patience: Patience
) -> list[Fetched]:
    def bring(work: tuple[Item, Fetched | None]) -> Fetched:
        return fetch(*work, folders, patience)

    return _side_by_side(bring, group)


def _side_by_side(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(function, items))


@contextlib.contextmanager
def _state(job: Job[Params], dataset: str) -> Iterator[Path]:
    """The folder of this dataset's downloads, for one run at a time.

    Experiments in other folders (`dvc exp run --temp`) share it, so they wait for each other.
    """
    folder = state_folder() / "ingest" / dataset
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            job.log.info("another run downloads this dataset; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield folder


def _ledger(state: Path) -> dict[str, Fetched]:
    """What earlier runs brought, by identity; empty if that cannot be told."""
    try:
        entries = json.loads((state / _LEDGER).read_bytes())
        return {identity: Fetched(**entry) for identity, entry in entries.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(state: Path, fetched: Mapping[Item, Fetched]) -> None:
    """Note what is in raw/ now, and let the downloads go: raw/ holds the same files."""
    remote = {item.identity: asdict(one) for item, one in fetched.items() if item.is_remote}
    write_text(state / _LEDGER, json.dumps(remote))
    for path in state.iterdir():
        if path.name != _LEDGER:
            path.unlink()


def _account(plan: Plan, fetched: Mapping[Item, Fetched]) -> Json:
    """What came from one source, compared with what the card says of it.

    Raises:
        HeadraceError: it is not what the card says.
    """
    brought = [(item, fetched[item]) for item in plan.items]
    num_bytes = sum(one.num_bytes for _, one in brought)
    if plan.is_file:
        sha256 = brought[0][1].sha256
    else:
        listing = "".join(f"{one.sha256}  {item.file.relative}\n" for item, one in brought)
        sha256 = hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
    for name, stated, found in (
        ("num_bytes", plan.source.num_bytes, num_bytes),
        ("sha256", plan.source.sha256, sha256),
    ):
        if stated not in (None, found):
            raise HeadraceError(
                "The source is not what the card says.",
                where=plan.source.url,
                expected=f"{name}: {stated}",
                found=f"{name}: {found}",
                fix=f"if the new content is right, put the {name} that was found into the card",
            )
    return {
        "num_files": len(brought),
        "num_bytes": num_bytes,
        "num_unpacked": sum(bool(item.unpacked_from) for item in plan.items),
        "sha256": sha256,
    }


if __name__ == "__main__":
    stage.main("pipelines.ingest")
