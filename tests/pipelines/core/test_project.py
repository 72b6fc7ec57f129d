from pathlib import Path

import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.project import is_covered, read, resolved

DVC_YAML = """\
stages:
  clean:
    cmd: >-
      python -m pipelines.clean --raw datasets/${dataset}/raw
      --out datasets/${dataset}/clean --report r.json
    deps:
      - pipelines/clean.py
      - datasets/${dataset}/raw
    params:
      - clean
      - seed
    outs:
      - datasets/${dataset}/clean:
          push: false
    metrics:
      - r.json:
          cache: false
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "dvc.yaml"
    path.write_text(text)
    return path


def test_a_stage_is_read_from_its_block(tmp_path: Path) -> None:
    (stage,) = read(write(tmp_path, DVC_YAML)).stages
    assert (stage.name, stage.module) == ("clean", "pipelines.clean")
    assert stage.reads == {"raw": "datasets/${dataset}/raw"}
    assert stage.writes == ("datasets/${dataset}/clean", "r.json")
    assert stage.deps == ("pipelines/clean.py", "datasets/${dataset}/raw")
    assert stage.source == Path("pipelines/clean.py")
    assert stage.test == Path("tests/pipelines/test_clean.py")


def test_known_keys_are_those_tracked_or_interpolated(tmp_path: Path) -> None:
    assert read(write(tmp_path, DVC_YAML)).top_level_keys == {"clean", "seed", "dataset"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1", "dvc.yaml has no stages"),
        ("stages: {x: }", "needs one command"),
        ("stages: {x: {foreach: [a], do: {cmd: python -m x}}}", "needs one command"),
        ("stages: {x: {cmd: python -m x, deps: a.py}}", "`deps` must be a list"),
        ("stages: {x: {cmd: python -m x, params: [{b.yaml: [k]}]}}", "params of another file"),
        ("stages: {x: {cmd: [a, b]}}", "needs one command"),
        ("stages: {x: {cmd: python x.py}}", "has a command of another form"),
        ("stages: {x: {cmd: python -m x --out}}", "has a command of another form"),
        ("stages: {x: {cmd: 'python -m \"x'}}", "has a command of another form"),
    ],
)
def test_another_form_of_dvc_yaml_is_told_in_words(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(HeadraceError, match=part):
        read(write(tmp_path, text))


def test_an_unknown_stage_is_told_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=r"no stage 'klean'(.|\n)*one of clean"):
        read(write(tmp_path, DVC_YAML)).stage("klean")


def test_what_is_not_cached_is_known(tmp_path: Path) -> None:
    (stage,) = read(write(tmp_path, DVC_YAML)).stages
    assert stage.uncached == {"r.json"}


def test_a_stage_tracks_a_key_by_its_name_or_by_its_section(tmp_path: Path) -> None:
    (stage,) = read(write(tmp_path, DVC_YAML)).stages
    keys = ("seed", "clean", "clean.min_side_px", "lr", "cleaner", "train.seed")
    assert [key for key in keys if stage.tracks(key)] == ["seed", "clean", "clean.min_side_px"]


@pytest.mark.parametrize(
    ("path", "cover"),
    [
        ("pipelines/core/errors.py", "pipelines/core"),
        ("pipelines/core", "pipelines/core/"),
        ("datasets/fashion/raw/a.zip", "datasets/${dataset}/raw"),
        ("datasets/${dataset}/clean/manifest", "datasets/${dataset}/clean"),
        ("runs/a-b/x", "runs/${ a.b }-${c}"),
    ],
)
def test_a_path_covers_itself_and_what_lies_below(path: str, cover: str) -> None:
    assert is_covered(path, ["other", cover])


@pytest.mark.parametrize(
    ("path", "cover"),
    [
        ("pipelines/core", "pipelines/core/errors.py"),
        ("pipelines/cores.py", "pipelines/core"),
        ("datasets/fashion/rawer", "datasets/${dataset}/raw"),
        ("datasets/a/b/raw", "datasets/${dataset}/raw"),
        ("pipelines/xpy", "pipelines/x.py"),
    ],
)
def test_a_path_covers_nothing_beside_it(path: str, cover: str) -> None:
    assert not is_covered(path, ["other", cover])


def test_interpolations_are_replaced_where_a_value_is_known() -> None:
    values = {"dataset": "fashion", "deep": {"er": 2}}
    assert resolved("d/${dataset}/${ deep.er }/${x}/${x.y}", values) == "d/fashion/2/${x}/${x.y}"
