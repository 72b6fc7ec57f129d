"""What the runs made of a sample: which weights were trained on it, and what they took it for.

A run is a stage that reads what `decode` writes and leaves a `lineage.json` (it trained) or a
`predictions.parquet` (it judged): those of this folder, and those that git remembers of the same
data. Costs a SHA-256 of the index of the decoded shards, and a look at each dvc.lock in git.
"""

from __future__ import annotations

from pathlib import Path

from pipelines.commands.why import history
from pipelines.commands.why.built import Built, read_json, read_rows
from pipelines.commands.why.step import Fact, Step, not_built
from pipelines.core.project import Stage
from pipelines.core.route import digest, out_of
from pipelines.core.storage import sha256_file

NUM_SHOWN = 8
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
    facts = [Fact("run", text, values)]
    if split == "train":
        facts += _others(built, stage)
    return Step(stage.name, "trained" if values["trained"] else "not trained", tuple(facts))


def _others(built: Built, stage: Stage) -> list[Fact]:
    """The other runs in git that trained on the data as they are here."""
    decoded = str(built.path(out_of(built.route.decode)))
    md5 = digest(built.lock, built.route.decode.name, "outs", decoded)
    if md5 is None:
        return []
    ours = history.made_by(stage, built.lock)
    found = [run for run in history.runs_on(stage, decoded, md5) if run.made != ours]
    if not found:
        return []
    names = ", ".join(run.name for run in found[:NUM_SHOWN])
    more = f" and {len(found) - NUM_SHOWN:,} more" if len(found) > NUM_SHOWN else ""
    text = f"{len(found)} in git saw it too, with other params or code: {names}{more}"
    return [Fact("runs", text, {"runs": [{"name": it.name, "commit": it.commit} for it in found]})]


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
