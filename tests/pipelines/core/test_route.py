from pathlib import Path

import pytest

from pipelines.core import project
from pipelines.core.errors import HeadraceError
from pipelines.core.route import Route, digest, out_of, read_lock, route, settings
from tests.project import ROOT

LOCK = """\
schema: '2.0'
stages:
  clean:
    cmd: python -m pipelines.clean
    params:
      params.yaml:
        clean:
          min_contrast: 2
    outs:
    - path: datasets/fashion/clean
      hash: md5
      md5: 0123.dir
"""


def route_of(folder: Path, *changes: tuple[str, str]) -> Route:
    """The route of this repository's dvc.yaml after some changes of its text."""
    text = (ROOT / "dvc.yaml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "dvc.yaml").write_text(text)
    return route(project.read(folder / "dvc.yaml"))


def names(found: Route) -> list[str]:
    return [stage.name for stage in found.rejecting]


def test_the_stages_of_this_repository_are_found_in_order(tmp_path: Path) -> None:
    found = route_of(tmp_path)
    assert found.ingest is not None
    assert found.ingest.name == "ingest"
    assert names(found) == ["clean", "shard", "decode"]
    assert {"train", "evaluate"} <= {stage.name for stage in found.readers}
    assert out_of(found.decode) == "datasets/${dataset}/decoded"


def test_stages_between_clean_and_shard_are_found_by_what_they_read(tmp_path: Path) -> None:
    def block(name: str, reads: str) -> str:
        return (
            f"  {name}:\n    cmd: python -m pipelines.{name} --manifest {reads}/manifest"
            f" --out datasets/${{dataset}}/{name}\n"
        )

    # In dvc.yaml the second stands before the first: order is what they read, not where they stand.
    sieve = block("sieve", "datasets/${dataset}/clean")
    sift = block("sift", "datasets/${dataset}/sieve")
    found = route_of(
        tmp_path,
        ("--manifest datasets/${dataset}/clean/manifest", "--manifest datasets/${dataset}/sift"),
        ("  decode:\n", f"{sift}{sieve}  decode:\n"),
    )
    assert names(found) == ["clean", "sieve", "sift", "shard", "decode"]


def test_a_route_without_a_beginning_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match="Stage shard does not read") as caught:
        route_of(
            tmp_path,
            ("--manifest datasets/${dataset}/clean/manifest", "--manifest datasets/elsewhere/m"),
        )
    assert caught.value.found == "datasets/elsewhere/m"


def test_a_circle_of_stages_ends_in_an_error_or_a_route_but_ends(tmp_path: Path) -> None:
    circle = (
        "python -m pipelines.clean --card",
        "python -m pipelines.clean --manifest datasets/${dataset}/clean/manifest --card",
    )
    assert len(names(route_of(tmp_path, circle))) < 20


def test_params_of_the_last_run_are_used_before_those_of_now(tmp_path: Path) -> None:
    clean = route_of(tmp_path).manifests[0]
    (tmp_path / "dvc.lock").write_text(LOCK)
    lock = read_lock(tmp_path / "dvc.lock")
    found = settings(clean, {"clean": {"min_contrast": 3}}, lock)
    assert (found.used, found.now) == ({"min_contrast": 2}, {"min_contrast": 3})


def test_without_a_lock_the_params_of_now_are_used(tmp_path: Path) -> None:
    clean = route_of(tmp_path).manifests[0]
    lock = read_lock(tmp_path / "dvc.lock")
    assert settings(clean, {"clean": {"min_contrast": 3}}, lock).used == {"min_contrast": 3}


def test_digests_are_those_of_the_lock(tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_text(LOCK)
    lock = read_lock(tmp_path / "dvc.lock")
    assert digest(lock, "clean", "outs", "datasets/fashion/clean") == "0123.dir"
    assert digest(lock, "clean", "outs", "datasets/other/clean") is None
    assert digest(lock, "clean", "deps", "datasets/fashion/clean") is None
    assert digest(lock, "shard", "outs", "datasets/fashion/clean") is None
