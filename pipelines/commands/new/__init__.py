"""Add a stage: module, test, params section and dvc.yaml block, ready to run.

    python -m pipelines new drop_blurred --after clean

After `clean`, or another stage that writes a manifest, the new stage drops samples with a reason
and hands the rest on: whoever read that manifest now reads the new one. After `shard` or `decode`
it makes a table of each shard, beside the chain. What it does at first is an example with one
threshold, to be changed in one function. Comments and order of both YAML files stay; all files are
written, or none.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipelines.commands.new.plan import DVC_YAML, GITIGNORE, PARAMS_YAML, Plan, plan
from pipelines.core.storage import write_text


def main(argv: Sequence[str]) -> int:
    """Write a new stage and say what was written."""
    parser = argparse.ArgumentParser(
        "python -m pipelines new",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verb", metavar="VERB", help="its name: a verb in small letters")
    parser.add_argument("--after", metavar="STAGE", required=True, help="whose output it reads")
    given = parser.parse_args(argv)
    made = plan(given.verb, given.after)
    write_all(made.texts)
    print(_summary(given.verb, given.after, made))
    return 0


def write_all(texts: Mapping[Path, str]) -> None:
    """Write every file, in order; if one fails, put those before it back as they were."""
    before = {path: path.read_bytes() if path.exists() else None for path in texts}
    written: list[Path] = []
    try:
        for path, text in texts.items():
            written.append(path)
            write_text(path, text)
    except BaseException:
        for path in written:
            _put_back(path, before[path])
        raise


def _put_back(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


def _summary(verb: str, after: str, made: Plan) -> str:
    readers = f"; {', '.join(made.shape.readers)} now reads its manifest" * bool(made.shape.readers)
    said = {
        DVC_YAML: f"stage {verb} after {after}{readers}",
        PARAMS_YAML: f"section {verb}",
        GITIGNORE: "a line for its output",
    }
    new = {path: "new" for path in made.texts if path not in said}
    width = max(len(str(path)) for path in made.texts)
    lines = [f"{path!s:<{width}}  {text}" for path, text in {**new, **said}.items()]
    *_, test = new
    next_steps = f"next: pytest {test} && python -m pipelines check && dvc repro"
    return "\n".join([*lines, next_steps])
