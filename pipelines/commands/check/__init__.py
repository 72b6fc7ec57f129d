"""Name everything in which dvc.yaml, params.yaml, code, tests and ignore rules are out of step.

A line a finding: where, its kind, what was expected, what was found, what to do. Exits with 1 if
there is any. Changes nothing and runs no stage; imports the stages for their Params (with torch:
three seconds). What a stage opened is known once it has run here; a list older than the stage's
code is not used.
"""

import argparse
from collections.abc import Sequence

from pipelines.commands.check import deps, files, layout, settings, tree
from pipelines.commands.check.finding import Finding, Kind
from pipelines.commands.check.tree import Tree

_RULES = (layout, deps, files, settings)


def main(argv: Sequence[str]) -> int:
    """Print what is out of step; 1 if anything is."""
    parser = argparse.ArgumentParser(
        "python -m pipelines check",
        description=__doc__,
        epilog="kinds of findings:\n" + "\n".join(f"  {kind:<19} {kind.meaning}" for kind in Kind),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(argv)
    read = tree.read()
    found = findings(read)
    for finding in found:
        print(finding)
    print(_summary(read, found))
    return 1 if found else 0


def findings(read: Tree) -> list[Finding]:
    """All findings, sorted by place."""
    return sorted({finding for rule in _RULES for finding in rule.findings(read)})


def _summary(read: Tree, found: Sequence[Finding]) -> str:
    num_known = sum(files.is_known(stage, read) for stage in read.stages)
    seen = (
        f"{len(read.stages)} stages, {len(read.sources.files)} modules;"
        f" {num_known} stages have run as they are, so that the files they open are known"
    )
    if not found:
        return f"Everything is in step ({seen})."
    return f"{len(found)} finding{'s' * (len(found) > 1)} ({seen})."
