from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from pipelines.core.errors import HeadraceError
from pipelines.core.params import TOP_LEVEL, load, params, top_level_fields

DVC_YAML = """\
stages:
  train:
    cmd: python -m trainers.train --data datasets/${dataset} --out runs
    params: [train, lr]
"""


@params
class Params:
    lr: Annotated[float, Field(gt=0), TOP_LEVEL]
    epochs: Annotated[int, Field(ge=1)]


def write(folder: Path, text: str) -> Path:
    (folder / "dvc.yaml").write_text(DVC_YAML)
    path = folder / "params.yaml"
    path.write_text(text)
    return path


def test_a_section_and_top_level_keys_make_one_dataclass(tmp_path: Path) -> None:
    path = write(tmp_path, "dataset: fashion\nlr: 1e-05\ntrain: {epochs: 3}\n")
    assert load(Params, "train", path) == Params(lr=0.00001, epochs=3)


def test_top_level_fields_are_those_that_are_marked() -> None:
    assert top_level_fields(Params) == ("lr",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lr: fast\ntrain: {epochs: 3}", "lr: expected a valid number, found 'fast' (text)"),
        ("lr: 1\ntrain: {epoch: 3, epochs: 3}", "train.epoch: unknown key. Did you mean 'epochs'?"),
        ("lr: 1\ntrain: {}", "train.epochs: missing, expected a value"),
        ("train: {epochs: 3}", "lr: missing, expected a value"),
        ("lr: 1\ntrain: 3", "train: expected a mapping, found 3 (a whole number)"),
        (
            "lr: 1\ntrain: {epochs: 3, lr: 2}",
            "train.lr: belongs at the top of the file, not in train:",
        ),
        (
            "lr: 1\nlrr: 1\ntrain: {epochs: 3}",
            "lrr: unknown key, no stage of dvc.yaml tracks it. Did you mean 'lr'?",
        ),
    ],
)
def test_a_fault_is_named_by_its_key_in_the_file(tmp_path: Path, text: str, line: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(HeadraceError) as caught:
        load(Params, "train", path)
    assert str(caught.value).splitlines() == [f"{path} has one fault:", f"  {line}"]


def test_a_missing_section_names_every_key_it_should_have(tmp_path: Path) -> None:
    path = write(tmp_path, "lr: 1\n")
    with pytest.raises(HeadraceError, match=r"train\.epochs: missing"):
        load(Params, "train", path)
