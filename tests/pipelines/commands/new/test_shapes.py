from pathlib import Path

import pytest

from pipelines.commands.new.shapes import shape_after
from pipelines.core import project
from pipelines.core.errors import HeadraceError

ROOT = Path(__file__).parents[4]


@pytest.fixture
def described() -> project.Project:
    return project.read(ROOT / "dvc.yaml")


def test_after_clean_it_reads_the_manifest_that_others_then_read_from_it(
    described: project.Project,
) -> None:
    shape = shape_after(described, "clean")
    assert shape.template == shape.argument == "manifest"
    assert shape.reads == "datasets/${dataset}/clean/manifest"
    assert shape.readers == ("shard",)


@pytest.mark.parametrize(
    ("after", "argument", "reads"),
    [
        ("shard", "shards", "datasets/${dataset}/shards"),
        ("decode", "decoded", "datasets/${dataset}/decoded"),
    ],
)
def test_after_a_stage_with_shards_it_reads_them_beside_the_chain(
    described: project.Project, after: str, argument: str, reads: str
) -> None:
    shape = shape_after(described, after)
    assert (shape.template, shape.argument, shape.reads) == (after, argument, reads)
    assert shape.readers == ()


@pytest.mark.parametrize("after", ["ingest", "train", "evaluate"])
def test_after_others_it_is_told_which_stages_can_be_followed(
    described: project.Project, after: str
) -> None:
    message = (
        rf"no pattern for a stage after {after}(.|\n)*manifest or shards: clean, shard, decode"
    )
    with pytest.raises(HeadraceError, match=message):
        shape_after(described, after)
