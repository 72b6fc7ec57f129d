"""The versions that a result depends on: Python's, and those of the libraries behind some code.

What is installed counts, not what requirements.lock says. A library's own requirements count too:
DALI decodes by a package of another name. Costs 0.2 s, most of it Python's own reading of what is
installed.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from importlib import metadata

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def versions(libraries: Iterable[str]) -> dict[str, str]:
    """Version by name, sorted: Python, the machine's kind, and every distribution in question.

    Args:
        libraries: top-level names of imports, such as `PIL`; what no distribution provides (a
            module of Python's own, a file beside the project) is left out.
    """
    providers = metadata.packages_distributions()
    found = _with_requirements({name for one in libraries for name in providers.get(one, ())})
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"machine": platform.machine(), "python": python} | dict(sorted(found.items()))


def _with_requirements(names: Iterable[str]) -> Mapping[str, str]:
    """Versions of distributions and of all that they require and that is installed."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    pending = list(names)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # It is wanted by another system or Python only.
        found[name] = one.version
        pending += _required(one.requires or ())
    return found


def _required(lines: Iterable[str]) -> list[str]:
    """The names in lines such as `dask[array]>=2; python_version > "3"`, but those of extras."""
    wanted = [line for line in lines if "extra ==" not in line]
    return [match[0] for match in map(_NAME.match, wanted) if match]
