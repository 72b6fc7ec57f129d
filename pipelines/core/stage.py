"""Running a stage: what every stage gets for nothing.

A stage module holds `Params`, `run(job) -> report` and, as its last line,
`stage.main("pipelines.<verb>")` under the usual guard. From then on its outputs are there in full
or not at all, two runs on one output exclude each other, an orphan dies with its parent, the params
are typed, the samples are counted, and faults are told in words. `job.map` is the way to be
parallel.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from pipelines.core import cluster, output, params, process, report
from pipelines.core.audit import Opened
from pipelines.core.errors import HeadraceError
from pipelines.core.mapping import map_here, map_over
from pipelines.core.report import Report
from pipelines.core.sources.remote import is_remote
from pipelines.core.storage import temporary_sibling

P = TypeVar("P")
T = TypeVar("T")
R = TypeVar("R")

_FEW = 16


@dataclass(frozen=True)
class Job(Generic[P]):
    """One run of a stage.

    Attributes:
        stage: its name.
        params: the validated parameters.
        inputs: what the command line's arguments name, by name; all exist.
        out: the folder to write into, empty at first; becomes the stage's out when `run` returns.
            Where `--out` has an ending, as `report.html`, the file to write.
        urls: those of the command line's arguments that are URLs; only a module whose `MAY_BE_URL`
            names them is given any.
    """

    stage: str
    params: P
    inputs: Mapping[str, Path]
    out: Path
    _stack: contextlib.ExitStack
    _clients: list[Any]
    urls: Mapping[str, str] = field(default_factory=dict)

    def source(self, name: str) -> Path | str:
        """An argument that may be a URL (`str`) or a path of this machine."""
        return self.urls[name] if name in self.urls else self.inputs[name]

    @property
    def log(self) -> logging.Logger:
        """For lines that people read while it runs.

        Durations and host names belong here, never in a report.
        """
        return logging.getLogger(f"headrace.{self.stage}")

    def map(self, function: Callable[[T], R], items: Sequence[T], *, describe: str) -> list[R]:
        """`[function(item) for item in items]`, on the machine's Dask cluster, with progress.

        A few tasks for threads of this process are done without starting one.

        Args:
            function: importable or a `functools.partial` of such; pure, and safe to run twice.
            items: usually buckets; each is one task.
            describe: what is counted, such as "buckets cleaned".

        Returns:
            Results in the order of `items`, whatever the order in which they were done.

        Raises:
            HeadraceError: the first one in the order of items that a task raised.
        """
        told = f"{self.stage}: {describe}"
        where = cluster.machine()
        if where.cluster == "threads" and len(items) <= _FEW and not self._clients:
            return map_here(function, items, num_threads=where.workers, describe=told)
        if not self._clients:
            self._clients.append(self._stack.enter_context(cluster.connect(where)))
        return map_over(self._clients[0], function, items, describe=told)


def main(module_name: str, argv: Sequence[str] | None = None) -> None:
    """Run the stage that `module_name` holds; exit with 1 where something must be mended.

    The module is imported by its name (not as `__main__`), so that its functions can be sent to
    other processes.
    """
    process.configure_logging()
    process.die_with_parent()
    opened = Opened(Path.cwd())
    try:
        process.require_linux()
        name = module_name.rpartition(".")[2]
        argv = sys.argv[1:] if argv is None else argv
        execute(importlib.import_module(module_name), name, argv)
        opened.save(name, argv)
    except HeadraceError as error:
        sys.exit(f"\nERROR in {module_name}: {error}")


def execute(module: Any, name: str, argv: Sequence[str]) -> Report:
    """Run one stage in this process; what `main` does without its effects on the process.

    Args:
        module: has `Params` and `run`, and perhaps `MAY_BE_URL`.
        name: the stage's name.
        argv: `--name path` pairs; `--out` is needed, `--report` optional, all others must exist.

    Raises:
        HeadraceError: anything that the user can mend.
    """
    inputs, urls, out, report_path = arguments(module, name, argv)
    settings = params.load(module.Params, name)
    started = time.monotonic()
    with output.no_space_told(out), output.exclusive(out), contextlib.ExitStack() as stack:
        folder = temporary_sibling(out)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        written_to = folder / out.name if out.suffix else folder
        job = Job(name, settings, inputs, written_to, stack, [], urls)
        try:
            written: Report = module.run(job)
            report.check_conserved(name, written)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        output.place(folder, out)
        if report_path is not None:
            report.write(report_path, written)
    job.log.info("done in %.1f s%s", time.monotonic() - started, _tally(written))
    return written


def _tally(written: Report) -> str:
    if "samples_in" not in written:
        return ""
    numbers = [
        f"{written[name]:,} {name.removeprefix('samples_')}"
        for name in ("samples_in", "samples_kept", "samples_rejected")
    ]
    return f": samples {', '.join(numbers)}"


class Arguments(NamedTuple):
    """What the command line of a stage names."""

    inputs: dict[str, Path]
    urls: dict[str, str]
    out: Path
    report: Path | None


def arguments(module: Any, name: str, argv: Sequence[str]) -> Arguments:
    """Split `--name path` pairs into inputs, URLs, out and report.

    Raises:
        HeadraceError: another form, or an input that is not there.
    """
    flags = list(argv[::2])
    if (
        len(argv) % 2
        or not all(flag.startswith("--") and len(flag) > 2 for flag in flags)
        or "--out" not in flags
    ):
        raise HeadraceError(
            f"Stage {name} was called in a way that it does not know.",
            expected="python -m MODULE --name path ... --out path, as its cmd in dvc.yaml",
            found=" ".join(argv) or "no argument",
        )
    values = {flag[2:]: value for flag, value in zip(flags, argv[1::2], strict=True)}
    may_be_url = getattr(module, "MAY_BE_URL", ())
    urls = {key: text for key, text in values.items() if key in may_be_url and is_remote(text)}
    paths = {key: Path(text) for key, text in values.items() if key not in urls}
    out, report_path = paths.pop("out"), paths.pop("report", None)
    for argument, path in paths.items():
        if not path.exists():
            raise HeadraceError(
                f"Stage {name} has nothing to read: --{argument} is not there.",
                where=str(path),
                fix=f"`dvc repro {name}` builds what comes before it; `dvc pull` fetches it",
            )
    return Arguments(paths, urls, out, report_path)
