"""Show what changed in the data between two git revisions, or since one: sample by sample.

    python -m pipelines diff                  HEAD and the workspace
    python -m pipelines diff v1.0             v1.0 and the workspace
    python -m pipelines diff v1.0 main        v1.0 and main
    python -m pipelines diff my-exp --json    a DVC experiment; for machines

Nothing is checked out: dvc.lock of a revision says which data it has, and these are read from the
DVC cache or remote, buckets that are equal only once. Samples are compared by key.
"""

import argparse
import json
from collections.abc import Sequence

from pipelines.commands.diff import compare, show
from pipelines.commands.diff.show import Comparison
from pipelines.commands.diff.sides import sides
from pipelines.commands.diff.version import Version
from pipelines.core.errors import HeadraceError


def main(argv: Sequence[str]) -> int:
    """Print what changed; 0 whatever it is."""
    parser = argparse.ArgumentParser(
        "python -m pipelines diff",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", metavar="REV", nargs="?", default="HEAD", help="default: HEAD")
    parser.add_argument("after", metavar="REV2", nargs="?", help="default: the workspace")
    parser.add_argument("--all", action="store_true", help="name every sample that changed")
    parser.add_argument("--json", action="store_true", help="for machines: one object, all samples")
    given = parser.parse_args(argv)
    found = compared(*_versions(given.before, given.after))
    if given.json:
        print(json.dumps(show.as_json(found), indent=2, ensure_ascii=False))
    else:
        print(show.as_text(found, show_all=given.all))
    return 0


def _versions(before: str, after: str | None) -> tuple[Version, Version]:
    """Both versions; DVC, which takes a second to import, is imported for nothing else."""
    from pipelines.commands.diff import committed, workspace  # noqa: PLC0415

    old = committed.version(before)
    return old, committed.version(after) if after is not None else workspace.version()


def compared(before: Version, after: Version) -> Comparison:
    """Compare two versions of a dataset.

    Raises:
        HeadraceError: they are of two datasets, or a file of them cannot be read.
    """
    if before.dataset != after.dataset:
        raise HeadraceError(
            "These are two datasets, and samples of different datasets are not compared.",
            where="params.yaml:dataset",
            expected=f"one dataset in {before.name} and {after.name}",
            found=f"{before.dataset} and {after.dataset}",
            fix="name revisions of one dataset: git log -G '^dataset:' params.yaml finds where"
            " it was changed",
        )

    both = sides(before, after)
    return Comparison(before, after, both, compare.changes(*both))
