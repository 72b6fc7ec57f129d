import hashlib
import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipelines import clean
from pipelines.core import records, stage
from pipelines.core.buckets import bucket_of
from pipelines.core.errors import HeadraceError
from pipelines.core.reasons import Reason
from pipelines.core.samples import looks
from tests import messy

CARD = """
title: t
licence: MIT
origin: o
task: classification
sources: [{url: raw}]
samples: {layout: folders}
"""
TABLE = CARD.replace(
    "{layout: folders}",
    "{layout: table, metadata: labels.csv, path_column: path, label_column: label,"
    " split_column: split}",
)
Row = dict[str, Any]


def set_up(card: str = CARD, **params: float | str) -> Path:
    """A card and parameters in the working folder; returns raw/."""
    Path("dataset.yaml").write_text(card)
    settings = {**messy.PARAMS, **params}
    Path("params.yaml").write_text(json.dumps({"clean": settings}))
    raw = Path("raw")
    raw.mkdir(exist_ok=True)
    return raw


def run(out: str = "clean") -> Mapping[str, Any]:
    """Run the stage as its command does, but in this process."""
    arguments = f"--card dataset.yaml --raw raw --out {out} --report {out}.json".split()
    return stage.execute(clean, "clean", arguments)


def kept(out: Path = Path("clean")) -> list[Row]:
    files = sorted((out / "manifest").iterdir())
    return [row for file in files for row in records.read_parquet(file).to_pylist()]


def rejected(out: Path = Path("clean")) -> list[Row]:
    return records.read_parquet(out / "rejected.parquet").to_pylist()


def fates(out: Path = Path("clean")) -> dict[str, str | None]:
    """Place of each file or row -> the reason for which it was dropped, or None."""
    good = {"/".join(filter(None, (row["container"], row["member"]))): None for row in kept(out)}
    return {**good, **{row["path"]: row["reason"] for row in rejected(out)}}


def digests(out: Path) -> dict[str, str]:
    """SHA-256 of every output file and of the report."""
    paths = {path.relative_to(out).as_posix(): path for path in out.rglob("*.parquet")}
    paths["report"] = out.with_suffix(".json")
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", "2")


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the messy dataset and what clean made of it."""
    folder = tmp_path_factory.mktemp("messy")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        expected = messy.write_messy(set_up())
        Path("expected.json").write_text(json.dumps(expected))
        run()
    return folder


def test_every_file_of_a_messy_dataset_meets_its_documented_fate(cleaned: Path) -> None:
    expected = json.loads((cleaned / "expected.json").read_text())
    assert fates(cleaned / "clean") == expected


def test_report_counts_what_the_tables_hold(cleaned: Path) -> None:
    report = json.loads((cleaned / "clean.json").read_text())
    good, bad = kept(cleaned / "clean"), rejected(cleaned / "clean")
    assert (report["samples_kept"], report["samples_rejected"]) == (len(good), len(bad))
    assert report["samples_in"] == len(good) + len(bad) == len(messy.messy_files())
    assert report["rejected"] == Counter(row["reason"] for row in bad)
    assert report["formats"] == Counter(row["format"] for row in good)
    assert report["splits"] == Counter(row["split"] for row in good)
    assert report["num_rotated"] == 2
    assert report["num_classes"] == 2


def test_manifest_keeps_its_contract(cleaned: Path) -> None:
    files = sorted((cleaned / "clean" / "manifest").iterdir())
    assert [file.name for file in files] == [f"{number:05d}.parquet" for number in range(8)]
    for number, file in enumerate(files):
        table = records.read_parquet(file)
        assert table.schema.equals(records.MANIFEST)
        told = records.metadata(table.schema)
        assert told == {"labels": ["cat", "dog"], "num_buckets": 8}
        keys = [str(key) for key in table["key"].to_pylist()]
        assert keys == sorted(keys)
        assert {bucket_of(key, 8) for key in keys} <= {number}
        for row in table.to_pylist():
            data = (cleaned / "raw" / row["container"]).read_bytes()
            assert row["sha256"] == hashlib.sha256(data).hexdigest()
            assert row["num_bytes"] == len(data)
            assert row["label"] == told["labels"][row["label_index"]]
    keys = [row["key"] for row in kept(cleaned / "clean")]
    assert len(set(keys)) == len(keys)


def test_rejected_rows_have_documented_reasons_and_details(cleaned: Path) -> None:
    rows = rejected(cleaned / "clean")
    assert {row["stage"] for row in rows} == {"clean"}
    assert all(row["detail"] for row in rows)
    assert [Reason(row["reason"]) for row in rows]
    assert str(cleaned) not in str(rows)


@pytest.mark.parametrize(
    ("cluster", "num_workers"), [("threads", "1"), ("threads", "3"), ("processes", "2")]
)
def test_bytes_do_not_depend_on_workers(
    cleaned: Path, monkeypatch: pytest.MonkeyPatch, cluster: str, num_workers: str
) -> None:
    monkeypatch.setenv("HEADRACE_CLUSTER", cluster)
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", num_workers)
    shutil.copytree(cleaned / "raw", set_up(), dirs_exist_ok=True)
    run()
    assert digests(Path("clean")) == digests(cleaned / "clean")


def test_archives_meet_the_fate_of_loose_files(cleaned: Path) -> None:
    raw = set_up()
    files = messy.messy_files()
    with zipfile.ZipFile(raw / "all.zip", "w") as archive:
        for path, (data, _) in files.items():
            archive.writestr(path, data)
    run()
    expected = json.loads((cleaned / "expected.json").read_text())
    assert fates() == {f"all.zip/{path}": reason for path, reason in expected.items()}
    loose = {row["key"]: (row["split"], row["sha256"]) for row in kept(cleaned / "clean")}
    in_zip = {row["key"]: (row["split"], row["sha256"]) for row in kept()}
    assert Counter(loose.values()) == Counter(in_zip.values())


def write_pictures(raw: Path, names: str = "abcdef", label: str = "cat") -> None:
    for number, name in enumerate(names.split() if " " in names else names):
        (raw / f"{name}.png").write_bytes(
            messy.encode(messy.stripes(label, number + 1000 * len(label)), "PNG")
        )


def test_metadata_rows_meet_their_documented_fates() -> None:
    raw = set_up(TABLE, max_rejected_fraction=1.0)
    write_pictures(raw, "abcdefgh")
    (raw / "same.png").write_bytes((raw / "a.png").read_bytes())
    (raw / "contrary.png").write_bytes((raw / "b.png").read_bytes())
    rows = [
        "a.png,cat,train",
        "same.png,cat,test",
        "b.png,cat,",
        "contrary.png,dog,",
        "c.png,cat,train",
        "c.png,dog,train",
        "d.png,dog,Validation",
        "d.png,DOG,val",
        "e.png,dog,train",
        "f.png,,train",
        "g.png,dog,later",
        "../etc/passwd,cat,train",
        "/etc/passwd,cat,train",
        "gone.png,cat,train",
        "e.png,cat,train,too,many",
    ]
    text = "\ufeff Path,LABEL ,split\r\n" + "\r\n".join(rows)
    (raw / "labels.csv").write_bytes(text.encode())
    report = run()
    assert {row["key"]: (row["label"], row["split"]) for row in kept()} == {
        "same": ("cat", "test"),
        "d": ("dog", "val"),
        "e": ("dog", "train"),
    }
    assert report["rejected"] == {
        "conflicting_labels": 4,
        "duplicate_row": 1,
        "exact_duplicate": 1,
        "malformed_row": 1,
        "missing_file": 1,
        "no_label": 1,
        "not_listed": 1,
        "unknown_split": 1,
        "unsafe_path": 2,
    }
    assert report["samples_in"] == len(rows) + 1


def test_adding_data_moves_no_old_sample_to_another_split() -> None:
    raw = set_up()
    messy.write_messy(raw, seed=1)
    run("before")
    for path, (data, _) in messy.messy_files(seed=2).items():
        target = raw / "new" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    run("after")
    before = {row["container"]: row["split"] for row in kept(Path("before"))}
    after = {row["container"]: row["split"] for row in kept(Path("after"))}
    assert {place: after[place] for place in before} == before
    assert len(after) == 2 * len(before) + 1  # What lay astray now lies in a folder: a third class.


def test_too_many_rejected_samples_fail_the_stage_and_write_nothing() -> None:
    messy.write_messy(set_up(max_rejected_fraction=0.1))
    with pytest.raises(HeadraceError) as caught:
        run()
    message = str(caught.value)
    assert "truncated 8" in message
    assert "clean.max_rejected_fraction" in message
    assert message.count(".jpg (") + message.count(".png (") + message.count(".bmp (") == 3
    assert not Path("clean").exists()
    assert not Path("clean.json").exists()


def test_empty_dataset_is_an_error() -> None:
    set_up()
    with pytest.raises(HeadraceError, match="No sample was found"):
        run()


def test_dataset_of_which_nothing_is_left_is_an_error() -> None:
    raw = set_up(max_rejected_fraction=1.0)
    (raw / "a.txt").write_text("no image")
    with pytest.raises(HeadraceError, match="No sample is left") as caught:
        run()
    assert "no_label 1" in str(caught.value)


def test_dataset_of_one_class_is_an_error() -> None:
    raw = set_up()
    (raw / "cat").mkdir()
    write_pictures(raw / "cat")
    with pytest.raises(HeadraceError, match="of one class") as caught:
        run()
    assert "6 samples of 'cat'" in str(caught.value)


def test_class_whose_files_are_all_dropped_is_no_class_unless_the_card_lists_it() -> None:
    raw = set_up()
    for label in ("cat", "dog"):
        (raw / label).mkdir()
        write_pictures(raw / label, label=label)
    (raw / "docs").mkdir()
    (raw / "docs" / "notes.txt").write_text("none of these")
    assert run("found")["num_classes"] == 2
    set_up(CARD + "labels: [dog, docs, cat]\n")
    assert run("listed")["num_classes"] == 3
    assert {row["label"]: row["label_index"] for row in kept(Path("listed"))} == {
        "dog": 0,
        "cat": 2,
    }


def test_damaged_archive_costs_what_is_damaged() -> None:
    raw = set_up(max_rejected_fraction=1.0)
    messy.write_messy(raw)
    with zipfile.ZipFile(raw / "more.zip", "w") as archive:
        for name in ("cat/x.png", "cat/y.png"):
            archive.writestr(name, messy.encode(messy.stripes("cat", len(name) + 7), "PNG"))
        archive.writestr("../cat/z.png", b"out")
    data = bytearray((raw / "more.zip").read_bytes())
    data[2000] ^= 0xFF
    (raw / "more.zip").write_bytes(data)
    (raw / "cut.tar").write_bytes(b"not a tar")
    report = run()
    found = fates()
    assert found["more.zip/cat/x.png"] == "unreadable"
    assert found["more.zip/../cat/z.png"] == "unsafe_path"
    assert found["cut.tar"] == "unreadable"
    assert report["samples_in"] == len(messy.messy_files()) + 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_bucket_samples", 0),
        ("max_rejected_fraction", 1.5),
        ("max_aspect_ratio", 0.5),
        ("val_fraction", 0.9),
        ("min_side_px", 8.5),
    ],
)
def test_impossible_parameter_is_refused_before_any_work(name: str, value: float) -> None:
    set_up(CARD, **{name: value})
    with pytest.raises(HeadraceError, match=name):
        run()


def write_look_alikes(raw: Path) -> None:
    """Nine pictures, and each again as a smaller JPEG."""
    for label, names in {"cat": "abcdef", "dog": "xyz"}.items():
        (raw / label).mkdir()
        for name in names:
            picture = messy.scene(ord(name))
            (raw / label / f"{name}.png").write_bytes(messy.encode(picture, "PNG"))
            small = messy.jpeg(picture.resize((120, 90)))
            (raw / label / f"{name}-small.jpg").write_bytes(small)


ALIKE = [
    f"{label}/{name}" for label, names in (("cat", "abcdef"), ("dog", "xyz")) for name in names
]


def look_alikes_under(policy: str) -> tuple[Mapping[str, Any], dict[str, Row], list[Row]]:
    """The report, the kept rows by key, and the leaks."""
    write_look_alikes(set_up(near_duplicates=policy, max_rejected_fraction=1.0))
    report = run()
    leaking = records.read_parquet(Path("clean/leaks.parquet")).to_pylist()
    return report, {row["key"]: row for row in kept()}, leaking


def test_policy_ignore_seeks_no_near_duplicates() -> None:
    report, rows, leaking = look_alikes_under("ignore")
    assert "near_duplicates" not in report
    assert ({row["cluster"] for row in rows.values()}, leaking) == ({""}, [])


def test_policy_flag_names_near_duplicates_and_tells_of_those_apart() -> None:
    report, rows, leaking = look_alikes_under("flag")
    told: Any = report["near_duplicates"]
    assert {rows[key]["cluster"] for key in ALIKE} == {
        rows[f"{key}-small"]["cluster"] for key in ALIKE
    }
    assert (told["num_clusters"], told["num_samples"]) == (9, 18)
    apart = [key for key in ALIKE if rows[key]["split"] != rows[f"{key}-small"]["split"]]
    assert apart
    assert sorted(row["key_a"] for row in leaking) == sorted(apart)


def test_policy_keep_together_has_none_apart() -> None:
    report, rows, leaking = look_alikes_under("keep_together")
    assert all(rows[key]["split"] == rows[f"{key}-small"]["split"] for key in ALIKE)
    assert (report["samples_kept"], leaking) == (18, [])


def test_policy_drop_keeps_the_largest() -> None:
    report, rows, leaking = look_alikes_under("drop")
    assert report["rejected"] == {"near_duplicate": 9}
    assert sorted(rows) == sorted(ALIKE)
    assert leaking == []


def test_another_policy_needs_no_look_at_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = set_up()
    messy.write_messy(raw)
    run("before")
    set_up(near_duplicates="flag")
    monkeypatch.setattr(looks, "_inspected", None)
    assert "near_duplicates" in run("after")


def test_given_splits_that_leak_are_listed_with_their_pairs() -> None:
    raw = set_up(TABLE, near_duplicates="keep_together", max_rejected_fraction=1.0)
    write_look_alikes(raw)
    lines = ["path,label,split"]
    for path in sorted(raw.glob("*/*")):
        split = "test" if path.suffix == ".jpg" else "train"
        lines.append(f"{path.parent.name}/{path.name},{path.parent.name},{split}")
    (raw / "labels.csv").write_text("\n".join(lines))
    found: Any = run()["near_duplicates"]
    leaking = records.read_parquet(Path("clean/leaks.parquet")).to_pylist()
    pairs = sorted((row["key_a"], row["key_b"]) for row in leaking)
    assert pairs == [(key, f"{key}-small") for key in ALIKE]
    assert found["num_leaking_pairs"] == {"train_val": 0, "train_test": 9, "val_test": 0}
    assert found["leaking_pairs"] == leaking


def test_clusters_do_not_depend_on_the_number_of_buckets() -> None:
    write_look_alikes(set_up(near_duplicates="flag", target_bucket_samples=1))
    many = run("many")
    set_up(near_duplicates="flag", target_bucket_samples=1000)
    few = run("few")
    assert (many["num_buckets"], few["num_buckets"]) == (32, 1)
    assert {**many, "num_buckets": 1} == few
    rows = [
        {row["key"]: (row["cluster"], row["split"]) for row in kept(Path(out))}
        for out in ("many", "few")
    ]
    assert rows[0] == rows[1]
    assert Path("many/leaks.parquet").read_bytes() == Path("few/leaks.parquet").read_bytes()


def test_outliers_are_rejected_by_a_threshold_that_the_report_lets_one_choose() -> None:
    raw = set_up()
    for label in ("cat", "dog"):
        (raw / label).mkdir()
        for seed in range(15):
            picture = messy.scene(seed + 20 * (label == "dog"))
            (raw / label / f"{seed}.png").write_bytes(messy.encode(picture, "PNG"))
    dark = messy.scene(99).point(lambda level: level // 8)
    (raw / "cat" / "dark.png").write_bytes(messy.encode(dark, "PNG"))
    told: Any = run("before")["outliers"]
    assert told["darkness"]["num_beyond"]["z_05"] == 1
    set_up(max_darkness_z=5)
    assert run("after")["rejected"] == {"outlier": 1}
    (row,) = rejected(Path("after"))
    assert (row["key"], row["detail"].split(" ")[0]) == ("cat/dark", "darkness")
