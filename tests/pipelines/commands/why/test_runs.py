import re
import shutil
from pathlib import Path

import pytest

from pipelines.commands.why import built as project
from pipelines.commands.why import runs
from tests.edited import BLURRED
from tests.project import commit, copy_of, run


@pytest.fixture
def whole(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in which every stage has run on the same data."""
    monkeypatch.chdir(built)
    return built


def told(key: str, split: str) -> dict[str, tuple[str, str]]:
    """Outcome and text by stage."""
    steps = runs.steps(project.read(), key, split)
    return {step.stage: (step.outcome, step.facts[0].text) for step in steps}


def test_a_training_sample_was_seen_by_the_weights(whole: Path) -> None:
    outcome, text = told("train/00001", "train")["train"]
    assert outcome == "trained"
    assert text.startswith("seen in each of 1 epochs; weights ")
    assert told("train/00001", "train")["evaluate"][0] == "not judged"


def test_a_test_sample_was_judged_and_not_trained_on(whole: Path) -> None:
    found = told("test/00001", "test")
    assert found["train"][0] == "not trained"
    assert "the split test" in found["train"][1]
    outcome, text = found["evaluate"]
    assert outcome == "judged"
    assert "with confidence 0." in text
    assert "earlier version" not in text


def test_other_runs_on_the_same_data_are_named(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_of(built, tmp_path / "copy")
    monkeypatch.chdir(folder)
    commit(folder, "built")
    lock = folder / "dvc.lock"
    text = lock.read_text()
    weights = re.findall(r"model.safetensors\n +hash: md5\n +md5: (\w+)", text)[0]
    lock.write_text(text.replace(weights, "0" * 32))
    commit(folder, "other weights")
    lock.write_text(text)
    (train,) = (it for it in runs.steps(project.read(), "a", "train") if it.stage == "train")
    name = run(folder, "git", "rev-parse", "--short=7", "HEAD").stdout.strip()
    assert train.facts[1].text.endswith(f"with other params or code: {name}")
    assert len(runs.steps(project.read(), "a", "test")[0].facts) == 1


def test_weights_of_other_data_are_not_taken_for_ours(in_edited: Path) -> None:
    found = told("train/00001", "train")
    assert found["train"][0] == "not trained"
    assert "another version of the data" in found["train"][1]
    assert "earlier version of the data" in told("test/00001", "test")["evaluate"][1]


def test_runs_that_are_not_there_are_told_as_missing(
    edited: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dvc.yaml", "dvc.lock", "params.yaml"):
        shutil.copy(edited / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert {outcome for outcome, _ in told(BLURRED, "train").values()} == {"not built"}
