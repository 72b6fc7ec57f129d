"""What `why` tells of a sample that looks like others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.commands.why import built
from pipelines.commands.why.alike import near_duplicates
from pipelines.core import records
from pipelines.core.buckets import bucket_of
from tests.project import ROOT

CLEAN = Path("datasets/pets/clean")
ROWS = {
    "cat/a": {"cluster": "cat/a", "phash": 0b0, "split": "train"},
    "cat/b": {"cluster": "cat/a", "phash": 0b111, "split": "test"},
    "cat/c": {"cluster": "cat/a", "phash": 0b1, "split": "train"},
    "dog/d": {"cluster": "", "phash": 0b0, "split": "train"},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> built.Built:
    """What `clean` leaves of four samples, two of which are of one cluster."""
    monkeypatch.chdir(tmp_path)
    Path("dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    text = (ROOT / "params.yaml").read_text()
    Path("params.yaml").write_text(text.replace("dataset: fashion", "dataset: pets"))
    (CLEAN / "manifest").mkdir(parents=True)
    blank = dict.fromkeys(records.MANIFEST.names)
    for bucket in range(2):
        rows = [
            {**blank, "key": key, "label": key[:3], **row}
            for key, row in ROWS.items()
            if bucket_of(key, 2) == bucket
        ]
        table = pa.Table.from_pylist(rows, schema=records.MANIFEST)
        table = records.with_metadata(table, {"labels": ["cat", "dog"], "num_buckets": 2})
        records.write_parquet(CLEAN / "manifest" / f"{bucket:05d}.parquet", table)
    detail = "like cat/a: 2 of 64 bits differ"
    row = {"key": "cat/e", "path": "cat/e.png", "reason": "near_duplicate", "detail": detail}
    table = records.rejected_table([row, {**row, "reason": "blank", "key": "cat/f"}], "clean")
    records.write_parquet(CLEAN / "rejected.parquet", table)
    return built.read()


def told(project: built.Built, key: str) -> tuple[list[str], Mapping[str, Any]]:
    row = project.row_of(project.clean, key)
    assert row is not None
    facts = near_duplicates(project, row)
    return [f"{it.name}: {it.text}" for it in facts], facts[0].values if facts else {}


def test_a_sample_that_is_like_no_other_has_nothing_to_tell(project: built.Built) -> None:
    assert told(project, "dog/d") == ([], {})


def test_the_representative_tells_of_all_that_it_stands_for(project: built.Built) -> None:
    texts, values = told(project, "cat/a")
    assert texts == [
        "cluster: that of itself; hash 0000000000000000",
        "alike: 2 kept, the nearest of which are cat/c (train, 1 bits), cat/b (test, 3 bits)",
        "alike: 1 rejected as near-duplicates of it: cat/e",
    ]
    assert values["near_duplicates_rejected"] == ["cat/e"]


def test_another_tells_of_its_representative(project: built.Built) -> None:
    texts, values = told(project, "cat/b")
    assert texts[0] == "cluster: that of cat/a; hash 0000000000000007"
    assert [(it["key"], it["distance_bits"]) for it in values["near_duplicates"]] == [
        ("cat/c", 2),
        ("cat/a", 3),
    ]
