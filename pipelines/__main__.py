"""Verbs for people: `python -m pipelines VERB ...`; without a verb, the list of them.

A verb is a module of `pipelines.commands` with `main(argv) -> exit status`; the first line of its
docstring is its line in the list. Only the verb that was asked for is imported.
"""

import importlib
import pkgutil
import sys
from collections.abc import Sequence

from pipelines import commands
from pipelines.core.errors import HeadraceError, did_you_mean


def verbs() -> list[str]:
    """The names of all verbs, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


def usage() -> str:
    """How to call this, and a line for each verb."""
    lines = ["usage: python -m pipelines VERB ...   (VERB --help says more)", ""]
    for verb in verbs():
        document = str(importlib.import_module(f"{commands.__name__}.{verb}").__doc__)
        lines.append(f"  {verb:<9} {document.splitlines()[0]}")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run one verb.

    Returns:
        Its exit status; 1 where it met something that the user must mend, 2 for an unknown verb.
    """
    if not argv or argv[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0
    verb, *rest = argv
    if verb not in verbs():
        print(
            f"There is no verb {verb!r}.{did_you_mean(verb, verbs())}\n\n{usage()}", file=sys.stderr
        )
        return 2
    try:
        status: int = importlib.import_module(f"{commands.__name__}.{verb}").main(rest)
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
