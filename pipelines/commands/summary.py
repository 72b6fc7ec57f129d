"""Say what the last run made: samples, dataset version, accuracy, weights.

Reads reports, metrics and two files to hash; imports neither pyarrow nor torch, so it takes a tenth
of a second. `make repro` ends with it.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.core import project
from pipelines.core.errors import HeadraceError
from pipelines.core.storage import sha256_file
from pipelines.core.typed import read_yaml

WEIGHTS = Path("runs/train/model.safetensors")
METRICS = Path("runs/evaluate/metrics.json")
PLOTS = (Path("runs/train/plots"), Path("runs/evaluate/plots"))


def main(argv: Sequence[str]) -> int:
    """Print the summary of the dataset that params.yaml names."""
    argparse.ArgumentParser("python -m pipelines summary", description=__doc__).parse_args(argv)
    rows = summary(read_yaml(Path("params.yaml")))
    width = max(map(len, rows))
    print("\n".join(f"{name:<{width}}  {text}" for name, text in rows.items()))
    return 0


def summary(params: Mapping[str, Any]) -> dict[str, str]:
    """What to show, by name, in order.

    Args:
        params: All of params.yaml.

    Raises:
        HeadraceError: A stage has not run, or wrote something else than it should.
    """
    dataset = Path("datasets", str(params.get("dataset")))
    index = dataset / "decoded" / "index.arrow"
    plots = ", ".join(str(folder) for folder in PLOTS)
    return {
        "samples": samples(reports(params)),
        "dataset version": f"{sha256_of(index)}  (SHA-256 of {index})",
        "test accuracy": f"{number(METRICS, 'accuracy'):.4f}  ({METRICS})",
        "weights": f"{sha256_of(WEIGHTS)}  (SHA-256 of {WEIGHTS})",
        "plots": f"{plots}  (`dvc plots show` makes a page of them)",
        "reports": f"{dataset / 'report.html'}, {dataset / 'reports'}, {METRICS}",
    }


def reports(params: Mapping[str, Any]) -> dict[str, Path]:
    """The report of every stage that rejects samples: those from `clean` to `decode`."""
    paths = {
        stage.name: Path(project.resolved(stage.arguments["report"], params))
        for stage in project.read().stages
        if "report" in stage.arguments
    }
    names = list(paths)
    return {name: paths[name] for name in names[names.index("clean") : names.index("decode") + 1]}


def samples(reports: Mapping[str, Path]) -> str:
    """How many samples were kept in the end, and how many each stage rejected."""
    rejected = {name: int(number(path, "samples_rejected")) for name, path in reports.items()}
    kept = number(reports["decode"], "samples_kept")
    by_stage = ", ".join(f"{stage} {count:,}" for stage, count in rejected.items())
    return f"{kept:,} kept, {sum(rejected.values()):,} rejected  ({by_stage})"


def sha256_of(path: Path) -> str:
    """SHA-256 of what a stage wrote."""
    if not path.is_file():
        raise missing(path)
    return sha256_file(path)


def number(path: Path, key: str) -> float:
    """The number under `key` in a JSON file that a stage wrote."""
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise missing(path) from None
    except ValueError as error:
        raise damaged(path, "JSON", str(error)) from None
    value = document.get(key) if isinstance(document, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise damaged(path, f"a number under {key!r}", repr(value))
    return value


def missing(path: Path) -> HeadraceError:
    """The error for a run that is not there, or not to its end."""
    return HeadraceError(
        "There is no finished run to sum up.",
        where=str(path),
        found="no such file",
        fix="dvc repro (or dvc pull, where somebody pushed the run)",
    )


def damaged(path: Path, expected: str, found: str) -> HeadraceError:
    """The error for a file that no stage leaves like this."""
    return HeadraceError(
        "A file that a stage wrote was changed since.",
        where=str(path),
        expected=expected,
        found=found,
        fix="git checkout or remove the file, then dvc repro",
    )
