"""What the runs made of a sample: which weights were trained on it, and what they took it for.

A run is a stage that reads what `decode` writes and leaves a `lineage.json` (it trained) or a
`predictions.parquet` (it judged). Costs a SHA-256 of the index of the decoded shards.
"""

from __future__ import annotations

from pathlib import Path

from pipelines.commands.why.built import Built, read_json, read_rows
from pipelines.commands.why.step import Fact, Step, not_built
from pipelines.core.project import Stage
from pipelines.core.route import digest, out_of
from pipelines.core.storage import sha256_file

_LINEAGE, _PREDICTIONS = "lineage.json", "predictions.parquet"


def steps(built: Built, key: str, split: str) -> list[Step]:
    """What each run did with a sample of the decoded data.

    Args:
        built: the project.
        key: of the sample.
        split: of the sample.
    """
    return [step for stage in built.route.readers for step in _run(built, stage, key, split)]


def _run(built: Built, stage: Stage, key: str, split: str) -> list[Step]:
    """What a stage that reads the decoded data did with the sample, if it says so."""
    if "out" not in stage.arguments:
        return []
    folder = built.out(stage)
    writes = {Path(path).name for path in stage.writes}
    if _LINEAGE in writes:
        return [_trained(built, stage, folder / _LINEAGE, split)]
    if _PREDICTIONS in writes:
        return [_judged(built, stage, folder / _PREDICTIONS, key)]
    return []


def _trained(built: Built, stage: Stage, path: Path, split: str) -> Step:
    """Whether the run of a lineage trained on the sample."""
    if not path.is_file():
        return not_built(stage.name, str(path))
    lineage = read_json(path)
    version = sha256_file(built.out(built.route.decode) / "index.arrow")
    values = {
        "dataset_version": version,
        "trained_on_version": lineage.get("dataset_version"),
        "weights_sha256": (lineage.get("weights") or {}).get("sha256"),
    }
    weights = f"weights {str(values['weights_sha256'])[:12]} of {path.parent}"
    if lineage.get("dataset_version") != version:
        text = (
            f"these weights are of another version of the data"
            f" ({str(lineage.get('dataset_version'))[:12]}, not {version[:12]}): dvc repro"
        )
        values["trained"] = None
    elif split != "train":
        text = f"the sample is of the split {split}; {weights}"
        values["trained"] = False
    else:
        epochs = (lineage.get("params") or {}).get("epochs")
        text = f"seen in each of {epochs} epochs; {weights}" if epochs else weights
        values["trained"] = True
    return Step(
        stage.name, "trained" if values["trained"] else "not trained", (Fact("run", text, values),)
    )


def _judged(built: Built, stage: Stage, path: Path, key: str) -> Step:
    """What a model took the sample for."""
    if not path.is_file():
        return not_built(stage.name, str(path))
    decoded = built.path(out_of(built.route.decode))
    ours = digest(built.lock, built.route.decode.name, "outs", str(decoded))
    theirs = digest(built.lock, stage.name, "deps", str(decoded))
    is_stale = ours != theirs
    rows = read_rows(path, key)
    if not rows:
        split = built.settings(stage).used.get("split")
        text = f"only the split {split} was judged" if split else "not among those judged"
        return Step(stage.name, "not judged", (Fact("prediction", text, {"predicted": None}),))
    row = rows[0]
    is_right = row["predicted"] == row["label"]
    text = f"{row['predicted']} with confidence {row['confidence']:.3f}, "
    text += "right" if is_right else f"wrong: it is {row['label']}"
    values = {
        "predicted": row["predicted"],
        "confidence": row["confidence"],
        "is_right": is_right,
        "is_out_of_date": is_stale,
    }
    remark = "; of an earlier version of the data: dvc repro" if is_stale else ""
    return Step(stage.name, "judged", (Fact("prediction", text + remark, values),))
