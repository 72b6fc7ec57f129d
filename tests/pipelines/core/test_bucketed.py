import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from pipelines.core import bucketed, records, stage
from pipelines.core.bucketed import Drop
from pipelines.core.errors import HeadraceError
from pipelines.core.params import params
from pipelines.core.report import Report
from pipelines.core.shards import decoded

METADATA = {"labels": ["cat", "dog"], "num_buckets": 2}


@params
class Params:
    min_sharpness: float
    max_rejected_fraction: Annotated[float, Field(ge=0, le=1)]


def row(key: str, sharpness: float, **more: object) -> dict[str, object]:
    blank = dict.fromkeys(records.MANIFEST.names, None)
    where = {"container": "a.zip", "member": f"{key}.png", "split": "train", "width": 10}
    return {**blank, **where, "key": key, "sharpness": sharpness, **more}


def write_manifest(*buckets: Sequence[dict[str, object]]) -> None:
    Path("manifest").mkdir()
    for number, rows in enumerate(buckets):
        table = pa.Table.from_pylist(list(rows), schema=records.MANIFEST)
        path = Path("manifest", f"{number:05d}.parquet")
        records.write_parquet(path, records.with_metadata(table, METADATA))


def blurred_or_narrow(rows: pa.Table, params: Params) -> list[Drop]:
    return [
        Drop("blurred", rows["sharpness"].to_numpy() < params.min_sharpness, "sharpness"),
        Drop("narrow", rows["width"].to_numpy() < 5, "width"),
    ]


def execute(run: Callable[[Any], Report], *inputs: str, budget: float = 1.0) -> Report:
    text = f"sharp: {{min_sharpness: 2.0, max_rejected_fraction: {budget}}}\n"
    Path("params.yaml").write_text(text)
    module = SimpleNamespace(Params=Params, run=run)
    return stage.execute(module, "sharp", [*inputs, "--out", "out", "--report", "report.json"])


def filtered(drops: Callable[..., Sequence[Drop]] = blurred_or_narrow, **options: float) -> Report:
    def run(job: stage.Job[Params]) -> Report:
        return bucketed.filter_manifest(job, drops)

    return execute(run, "--manifest", "manifest", **options)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def keys(path: str) -> list[str | None]:
    return records.read_parquet(Path(path))["key"].to_pylist()


def test_kept_rows_stay_in_their_bucket_with_order_schema_and_metadata() -> None:
    write_manifest([row("a", 3), row("b", 1), row("c", 2)], [row("d", 0)])
    filtered()
    assert keys("out/manifest/00000.parquet") == ["a", "c"]
    assert keys("out/manifest/00001.parquet") == []
    for number in range(2):
        table = records.read_parquet(Path(f"out/manifest/0000{number}.parquet"))
        assert table.schema.equals(records.MANIFEST)
        assert records.metadata(table.schema) == METADATA


def test_a_dropped_row_is_told_with_place_reason_value_and_stage() -> None:
    write_manifest([row("z", 9, width=4)], [row("b", 1.25), row("c", 1, container="c", member="")])
    filtered()
    assert records.read_parquet(Path("out/rejected.parquet")).to_pylist() == [
        {
            "key": "b",
            "path": "a.zip/b.png",
            "reason": "blurred",
            "detail": "sharpness 1.25",
            "stage": "sharp",
        },
        {"key": "c", "path": "c", "reason": "blurred", "detail": "sharpness 1", "stage": "sharp"},
        {
            "key": "z",
            "path": "a.zip/z.png",
            "reason": "narrow",
            "detail": "width 4",
            "stage": "sharp",
        },
    ]


def test_the_report_counts_every_sample_once_under_its_first_reason() -> None:
    write_manifest([row("a", 3), row("b", 1, width=1), row("c", 5, split="test")])
    filtered()
    assert json.loads(Path("report.json").read_text()) == {
        "samples_in": 3,
        "samples_kept": 2,
        "samples_rejected": 1,
        "rejected": {"blurred": 1},
        "splits": {"test": 1, "train": 1},
    }
    assert names("out") == ["manifest", "rejected.parquet"]
    assert names("out/manifest") == ["00000.parquet"]


def test_more_rejected_samples_than_the_budget_allows_fail_the_stage() -> None:
    write_manifest([row("a", 3), row("b", 1)])
    with pytest.raises(HeadraceError, match="rejected too many"):
        filtered(budget=0.4)
    assert not Path("out").exists()


def test_a_folder_without_manifest_is_told_in_words() -> None:
    Path("manifest").mkdir()
    with pytest.raises(HeadraceError, match="no manifest to filter"):
        filtered()


@pytest.mark.parametrize("where", [np.array([True]), np.array([1, 0]), np.array(True)])
def test_a_mask_of_another_shape_or_type_is_refused(where: Any) -> None:
    write_manifest([row("a", 3), row("b", 1)])
    with pytest.raises(HeadraceError, match=r"whether it is odd(.|\n)*expected: 2 booleans"):
        filtered(lambda *_: [Drop("odd", where, "width")])


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8))
def test_every_row_is_kept_or_dropped_for_the_first_reason_that_fits(
    tmp_path_factory: pytest.TempPathFactory, fits: list[tuple[bool, bool]]
) -> None:
    out = tmp_path_factory.mktemp("out")
    rows = pa.Table.from_pylist(
        [row(str(number), 1) for number in range(len(fits))], schema=records.MANIFEST
    )
    records.write_parquet(out / "00000.parquet", rows)

    def drops(_rows: pa.Table, _params: Params) -> list[Drop]:
        masks = np.array(fits, dtype=np.bool_).reshape(-1, 2)
        return [Drop("first", masks[:, 0], "width"), Drop("second", masks[:, 1], "width")]

    settings = Params(min_sharpness=0, max_rejected_fraction=1)
    piece = out / "piece"
    piece.mkdir()
    bucketed._filter_bucket(drops, settings, "sharp", out / "00000.parquet", piece)
    kept = records.read_parquet(piece / "00000.parquet")["key"].to_pylist()
    rejected = records.read_parquet(piece / "rejected.parquet").to_pylist()
    assert kept == [str(n) for n, fit in enumerate(fits) if not any(fit)]
    assert {line["key"]: line["reason"] for line in rejected} == {
        str(n): "first" if fit[0] else "second" for n, fit in enumerate(fits) if any(fit)
    }


def brightest(rows: pa.Table, params: Params) -> pa.Table:
    images = bucketed.images_of(rows)
    return rows.select(["key"]).append_column("most", pa.array(images.max(axis=(1, 2, 3))))


def lengths(rows: pa.Table, params: Params) -> pa.Table:
    return rows.select(["key", "length"])


def mapped(function: Callable[[pa.Table, Params], pa.Table]) -> Report:
    def run(job: stage.Job[Params]) -> Report:
        return bucketed.map_shards(job, job.inputs["shards"], function)

    return execute(run, "--shards", "shards")


def write_index(*shards: str, keys: Sequence[str]) -> None:
    Path("shards").mkdir(exist_ok=True)
    table = pa.table({"shard": list(shards), "key": list(keys), "length": list(range(len(keys)))})
    records.write_ipc(Path("shards/index.arrow"), table)


def test_a_decoded_shard_is_mapped_with_its_images() -> None:
    write_index("train-00000.arrow", "test-00001.arrow", keys=["", ""])
    for name, num_rows in (("train-00000", 3), ("test-00001", 1)):
        images = np.arange(num_rows, dtype=np.uint8).repeat(12).reshape(num_rows, 2, 2, 3)
        own = [f"{name}/{number}" for number in range(num_rows)]
        decoded.write_shard(Path(f"shards/{name}.arrow"), images, own, [0] * num_rows)
    assert mapped(brightest) == {"num_shards": 2, "num_rows_read": 4, "num_rows_written": 4}
    assert names("out") == ["test-00001.parquet", "train-00000.parquet"]
    table = records.read_parquet(Path("out/train-00000.parquet"))
    assert table["most"].to_pylist() == [0, 1, 2]


def test_a_tar_is_mapped_with_its_rows_of_the_index() -> None:
    write_index("train-00000.tar", "train-00000.tar", "val-00000.tar", keys=["a", "b", "c"])
    assert mapped(lengths)["num_rows_read"] == 3
    assert records.read_parquet(Path("out/train-00000.parquet")).to_pylist() == [
        {"key": "a", "length": 0},
        {"key": "b", "length": 1},
    ]
    assert keys("out/val-00000.parquet") == ["c"]


@pytest.mark.parametrize("has_index", [True, False])
def test_where_there_is_no_shard_it_is_told_in_words(has_index: bool) -> None:
    Path("shards").mkdir()
    if has_index:
        write_index(keys=[])
    with pytest.raises(HeadraceError, match="no shard to read"):
        mapped(lengths)
