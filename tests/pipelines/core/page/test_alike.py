"""The clusters and pairs that the page shows are those that `clean` found."""

import contextlib
import json
from pathlib import Path

import pytest

from pipelines import clean
from pipelines.core import stage
from pipelines.core.page import alike
from pipelines.core.page.alike import Alike
from pipelines.core.page.facts import Folders
from pipelines.core.page.thumbnails import Place, thumbnail
from tests.line import CARD
from tests.messy import PARAMS, encode, scene


def found(folder: Path, policy: str, num_examples: int) -> Alike | None:
    """What the page reads after `clean`, of nine pictures that are there twice or eight times."""
    for label, seeds in {"cat": range(6), "dog": range(6, 9)}.items():
        path = folder / "raw" / label
        path.mkdir(parents=True)
        for seed in seeds:
            for copy in range(8 if seed == 3 else 2):
                small = scene(seed).resize((200 - 4 * copy, 150 - 3 * copy))
                (path / f"{seed}-{copy}.png").write_bytes(encode(small, "PNG"))
    (folder / "dataset.yaml").write_text(CARD)
    settings = {**PARAMS, "near_duplicates": policy}
    (folder / "params.yaml").write_text(json.dumps({"clean": settings}))
    with contextlib.chdir(folder):
        arguments = "--card dataset.yaml --raw raw --out clean --report clean.json"
        stage.execute(clean, "clean", arguments.split())
    return alike.read(
        Folders(*(folder / name for name in ("raw", "clean", "x", "x"))), num_examples
    )


@pytest.fixture(autouse=True)
def one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", "1")


def test_nothing_is_told_where_nothing_was_sought(tmp_path: Path) -> None:
    assert found(tmp_path, "ignore", 4) is None


def test_clusters_are_counted_and_the_largest_shown_first(tmp_path: Path) -> None:
    told = found(tmp_path, "flag", 4)
    assert told is not None
    assert (told.policy, told.num_clusters, told.num_samples) == ("flag", 9, 24)
    assert [cluster.num_samples for cluster in told.clusters] == [8, 2, 2, 2]
    assert len(told.clusters[0].examples) == alike.MAX_MEMBERS


def test_pairs_are_those_of_the_report_and_have_pictures(tmp_path: Path) -> None:
    told = found(tmp_path, "flag", 100)
    assert told is not None
    report = json.loads((tmp_path / "clean.json").read_text())["near_duplicates"]
    assert told.num_pairs == report["num_leaking_pairs"]
    assert len(told.pairs) == sum(told.num_pairs.values()) > 0
    for pair in told.pairs:
        one, other = pair.examples
        assert one.detail.split(",")[0] != other.detail.split(",")[0]
        for shown in pair.examples:
            assert isinstance(shown.place, Place)
            assert thumbnail(tmp_path / "raw", shown.place, 32)
    leaking = {shown.key for pair in told.pairs for shown in pair.examples}
    for cluster in told.clusters:
        assert (len(cluster.splits) > 1) == any(it.key in leaking for it in cluster.examples)
