"""Verbs for people: `python -m PACKAGE VERB ...`; without a verb, the list of them.

A verb is a module of the package's `commands` with `main(argv) -> exit status`; the first line of
its docstring is its line in the list. Only the verb that was asked for is imported.
"""

import ast
import importlib
import importlib.util
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pipelines.core.errors import HeadraceError, did_you_mean


def verbs(commands: ModuleType) -> list[str]:
    """The names of all verbs in a package, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


def usage(commands: ModuleType) -> str:
    """How to call them, and a line for each verb."""
    package = commands.__name__.rpartition(".")[0]
    lines = [f"usage: python -m {package} VERB ...   (VERB --help says more)", ""]
    lines += [f"  {verb:<9} {_first_line(commands, verb)}" for verb in verbs(commands)]
    return "\n".join(lines)


def run(commands: ModuleType, argv: Sequence[str]) -> int:
    """Run one verb.

    Args:
        commands: the package of the verbs, such as `pipelines.commands`.
        argv: the verb and what it is given.

    Returns:
        Its exit status; 1 where it met something that the user must mend, 2 for an unknown verb.
    """
    if not argv or argv[0] in {"-h", "--help", "help"}:
        sys.stdout.write(f"{usage(commands)}\n")
        return 0
    verb, *rest = argv
    if verb not in verbs(commands):
        near = did_you_mean(verb, verbs(commands))
        sys.stderr.write(f"There is no verb {verb!r}.{near}\n\n{usage(commands)}\n")
        return 2
    try:
        status: int = importlib.import_module(f"{commands.__name__}.{verb}").main(rest)
        sys.stdout.flush()
    except HeadraceError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except BrokenPipeError:  # by `head`, say: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def _first_line(commands: ModuleType, verb: str) -> str:
    spec = importlib.util.find_spec(f"{commands.__name__}.{verb}")
    assert spec is not None and spec.origin is not None, "a verb is a module with a file"  # noqa: PT018
    document = ast.get_docstring(ast.parse(Path(spec.origin).read_bytes())) or ""
    return document.partition("\n")[0]
