"""Tell a sample's way through every stage: its file, features, decisions, shard, runs.

    python -m pipelines why train/00012
    python -m pipelines why datasets/fashion/raw/sample.zip::train/00012.png
    python -m pipelines why 3f2a91            (the start of a key, or of the file's SHA-256)

Reads what the stages left in this folder, and opens only the bucket of the key. Where params.yaml
has changed since a stage ran, the value that made the decision is told, and the new one beside it.
"""

import argparse
import json
from collections.abc import Sequence

from pipelines.commands.why import built, find, steps
from pipelines.commands.why.find import Found
from pipelines.commands.why.step import Step
from pipelines.core.report import Json


def main(argv: Sequence[str]) -> int:
    """Print the way of a sample."""
    parser = argparse.ArgumentParser(
        "python -m pipelines why",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "key", metavar="KEY", help="a key, a path below raw/, container::member, or a unique start"
    )
    parser.add_argument("--json", action="store_true", help="for machines: one object")
    given = parser.parse_args(argv)
    project = built.read()
    found = find.find(project, given.key)
    way = steps.trace(project, found)
    if given.json:
        print(json.dumps(_json(found, way), indent=2, ensure_ascii=False))
    else:
        print(_text(found, way))
    return 0


def _status(way: Sequence[Step]) -> str:
    """What became of the sample in the end."""
    last = way[-1]
    match last.outcome:
        case "rejected":
            return f"rejected by {last.stage}"
        case "not built" if all(step.outcome in ("passed", "not built") for step in way):
            return f"kept so far: {last.stage} is to be built"
        case _:
            return "kept"


def _json(found: Found, way: Sequence[Step]) -> dict[str, Json]:
    return {
        "key": found.key or None,
        "status": _status(way),
        "steps": [step.json for step in way],
    }


def _text(found: Found, way: Sequence[Step]) -> str:
    stage_width = max(len(step.stage) for step in way)
    name_width = max(len(fact.name) for step in way for fact in step.facts)
    lines = [f"{found.key or found.rejections[0]['path']}: {_status(way)}", ""]
    for step in way:
        lines += step.lines(stage_width, name_width)
    return "\n".join(lines)
