"""Say where weights come from: commit, data, params, environment, steps.

Works on a weights file alone, wherever it was copied. What leads back from it is looked for here:
the commit in the repository that this trainer lies in, the data in `datasets/` (or where --data
says). --samples prints the keys of the samples that it was trained on, one a line, and no more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.core.storage import sha256_file
from trainers.lineage import ROOT, blob_id, commit_of, digest_of_code
from trainers.reader.index import Index, open_index
from trainers.reader.shards import Shards
from trainers.record import Run, data_at_hand, find_data, open_run

_KEYS_AT_ONCE = 1000


def main(argv: Sequence[str]) -> int:
    """Print the lineage of the weights that `argv` names."""
    parser = argparse.ArgumentParser("python -m trainers lineage", description=__doc__)
    parser.add_argument("model", type=Path, help="a model.safetensors, or the folder of a run")
    parser.add_argument("--data", type=Path, help="folder of the decoded data")
    parser.add_argument("--samples", action="store_true", help="print the keys of all samples")
    arguments = parser.parse_args(argv)
    run = open_run(arguments.model)
    if arguments.samples:
        for key in samples(find_data(run, arguments.data)):
            print(key)
        return 0
    rows = list(described(run, arguments.data))
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:<{width}}  {text}" for name, text in rows))
    return 0


def described(run: Run, data: Path | None) -> Iterator[tuple[str, str]]:
    """What to show: a name and a line each; further lines of the same thing have no name."""
    about = run.about
    yield "weights", f"{sha256_file(run.path)}  (SHA-256 of {run.path})"
    shape = "x".join(map(str, about.shape))
    yield "model", f"{about.model}: images {shape}, {len(about.labels)} classes"
    yield from _code(about.code)
    yield from _data(about.dataset_version, data)
    yield "params", _line(about.params)
    yield "seeds", _line(about.seeds)
    yield from _environment(about.environment)
    chain = about.chain
    yield "chain", f"{chain.get('digest')}  (over {chain.get('num_steps'):,} steps)"


def samples(index: Index) -> Iterator[str]:
    """The keys of the training samples, in storage order."""
    shards = Shards(index, "train", 1)
    num_samples = shards.split.num_samples
    for first in range(0, num_samples, _KEYS_AT_ONCE):
        yield from shards.keys(np.arange(first, min(first + _KEYS_AT_ONCE, num_samples)))
    shards.close()


def _code(blobs: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    commit = commit_of(blobs)
    if commit:
        yield "commit", f"{commit}  (holds the {len(blobs)} files of code that ran)"
        return
    yield "commit", f"none here holds the {len(blobs)} files of code that ran"
    yield "", f"their blob ids have SHA-256 {digest_of_code(blobs)}"
    differing = [path for path, blob in blobs.items() if not _is_here(path, blob)]
    if not differing:
        yield "", "all are as they lie here: commit them, and this line names the commit"
        return
    yield "", f"other than here: {', '.join(differing)}"
    path = differing[0]
    yield "", f"to look for one: git log --all --find-object={blobs[path]} -- {path}"


def _is_here(path: str, blob: str) -> bool:
    file = ROOT / path
    return file.is_file() and blob_id(file) == blob


def _data(version: str, data: Path | None) -> Iterator[tuple[str, str]]:
    yield "dataset version", version
    found = data_at_hand(data)
    if version in found:
        num_samples = open_index(found[version]).split("train").num_samples
        yield "", f"in {found[version]}: trained on {num_samples:,} samples (--samples lists them)"
        return
    yield "", "not at hand; git checkout the commit, then dvc checkout or dvc pull, restores it"
    for other, path in found.items():
        yield "", f"{path} is version {other}"


def _environment(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = "environment"
    for key, value in facts.items():
        if value not in ({}, []):
            yield name, f"{key}: {_line(value) if isinstance(value, Mapping) else _text(value)}"
            name = ""


def _line(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)
