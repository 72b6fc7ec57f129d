"""The second build costs what changed, and gives the bytes that a build from nothing gives.

Real stages, in this process and without Dask, over small images; `made` notes what each of them
made anew.
"""

import functools
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines import clean, decode, shard
from pipelines.core import memo, stage
from pipelines.core.buckets import bucket_of
from pipelines.core.memo.store import Store
from pipelines.core.memo.versions import versions
from pipelines.core.samples import looks
from tests import messy
from tests.packed import bytes_of, write_params

CARD = """
title: t
licence: MIT
origin: o
task: classification
labels: [cat, dog]
sources: [{url: raw}]
samples: {layout: folders}
"""
DECODE = {
    "height_px": 8,
    "width_px": 8,
    "channels": 3,
    "fit": "stretch",
    "device": "cpu",
    "max_rejected_fraction": 1.0,
}
LINE: Mapping[str, tuple[Any, str]] = {
    "clean": (clean, "--card dataset.yaml --raw raw"),
    "shard": (shard, "--manifest clean/manifest --raw raw"),
    "decode": (decode, "--shards shard"),
}
Files = dict[str, bytes]
"""Images by their place in the archive: `cat/3.png`."""
Edit = Callable[[Files], None]


class Made:
    """What the stages made anew since it was last asked."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.looks: list[str] = []
        self.pieces: list[str] = []
        self._watch(patch, looks, "_inspected", lambda _folder, _limits, one: one.sha256)
        whole = Store.put

        def put(store: Store, fingerprint: str, piece: Path) -> None:
            data = [path.name for path in piece.iterdir() if path.suffix in (".tar", ".arrow")]
            self.pieces += [name for name in data if "-" in name]
            whole(store, fingerprint, piece)

        patch.setattr(Store, "put", put)

    def _watch(
        self, patch: pytest.MonkeyPatch, module: Any, name: str, told: Callable[..., str]
    ) -> None:
        whole = getattr(module, name)

        def watched(*arguments: Any) -> Any:
            self.looks.append(told(*arguments))
            return whole(*arguments)

        patch.setattr(module, name, watched)

    def taken(self) -> tuple[int, list[str]]:
        """Number of images looked at, and the shards written; begins anew."""
        found = len(self.looks), sorted(self.pieces)
        self.looks, self.pieces = [], []
        return found


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setattr(looks, "_TARGET_FILES", 4)
    monkeypatch.setattr(memo, "versions", functools.cache(versions))
    monkeypatch.setattr(memo.code, "read", functools.cache(memo.code.read))
    monkeypatch.setattr(os, "fsync", lambda _: None)  # Half of the time, where others write too.
    monkeypatch.setattr(stage.Job, "map", plain_map)
    return Made(monkeypatch)


def plain_map(job: Any, function: Callable[[Any], Any], items: Sequence[Any], **_: str) -> Any:
    return [function(item) for item in items]


def image(seed: int) -> bytes:
    label = messy.CLASSES[seed % 2]
    return messy.encode(messy.stripes(label, seed, 24, 20 + seed % 3), "PNG")


def start(num_images: int = 48) -> Files:
    return {f"{messy.CLASSES[n % 2]}/{n:03d}.png": image(n) for n in range(num_images)}


def build(files: Files, **changes: float) -> dict[str, bytes]:
    """Write the files as raw data, run the line, and return every file that it made."""
    Path("dataset.yaml").write_text(CARD)
    settings = {**messy.PARAMS, "max_rejected_fraction": 1.0, "target_bucket_samples": 4, **changes}
    write_params(clean=settings, shard={"max_rejected_fraction": 1.0}, decode=DECODE)
    Path("raw").mkdir(exist_ok=True)
    with zipfile.ZipFile("raw/all.zip", "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name])
    found: dict[str, bytes] = {}
    for name, (module, inputs) in LINE.items():
        stage.execute(module, name, [*inputs.split(), "--out", name, "--report", f"{name}.json"])
        found |= {f"{name}/{path}": data for path, data in bytes_of(Path(name)).items()}
        found[f"{name}.json"] = Path(f"{name}.json").read_bytes()
    return found


def built_from_nothing(files: Files, folder: Path, **changes: float) -> dict[str, bytes]:
    """The same in another folder, which holds no memo."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return build(files, **changes)


def add(files: Files) -> None:
    files["cat/new.png"] = image(1000)


def change(files: Files) -> None:
    files["cat/004.png"] = image(1001)


def remove(files: Files) -> None:
    del files["dog/007.png"]


def rename(files: Files) -> None:
    files["cat/renamed.png"] = files.pop("cat/010.png")


def relabel(files: Files) -> None:
    files["dog/012.png"] = files.pop("cat/012.png")


EDITS: Mapping[Edit, tuple[bool, tuple[str, ...]]] = {
    add: (True, ("cat/new",)),
    change: (True, ("cat/004",)),
    remove: (True, ("dog/007",)),
    rename: (False, ("cat/010", "cat/renamed")),
    relabel: (False, ("cat/012", "dog/012")),
}
"""Whether there are other contents, and the samples whose buckets are touched."""
MAX_LOOKS = 2 * 12
"""Two groups: of the content that came and of the one that went."""


def buckets_of(keys: tuple[str, ...]) -> set[int]:
    manifests = len(list(Path("clean/manifest").iterdir()))
    return {bucket_of(key, manifests) for key in keys}


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_of_one_sample_touches_its_bucket_alone_and_downstream_too(
    made: Made, tmp_path: Path, edit: Edit
) -> None:
    files = start()
    build(files)
    made.taken()
    edit(files)
    found = build(files)
    num_looks, shards = made.taken()
    is_new, keys = EDITS[edit]
    assert num_looks <= MAX_LOOKS if is_new else num_looks == 0
    assert {int(name.partition(".")[0][-5:]) for name in shards} <= buckets_of(keys)
    assert {Path(name).suffix for name in shards} <= {".tar", ".arrow"}
    assert found == built_from_nothing(files, tmp_path / "nothing")


def test_a_second_build_makes_nothing(made: Made) -> None:
    first = build(start())
    assert made.taken()[0] == 48
    assert build(start()) == first
    assert made.taken() == (0, [])


def test_other_thresholds_open_no_image(made: Made, tmp_path: Path) -> None:
    files = start()
    build(files)
    made.taken()
    found = build(files, min_side_px=21)
    assert made.taken()[0] == 0
    assert json.loads(found["clean.json"])["rejected"] == {"too_small": 16}
    assert found == built_from_nothing(files, tmp_path / "nothing", min_side_px=21)


ACTIONS = ("add", "change", "remove", "rename", "relabel", "copy")
Steps = list[tuple[str, int]]


def act(files: Files, action: str, number: int) -> None:
    """One edit of a sample that the number picks."""
    name = sorted(files)[number % len(files)]
    label = name.partition("/")[0]
    match action:
        case "add":
            files[f"{label}/new-{number}.png"] = image(1000 + number)
        case "change":
            files[name] = image(2000 + number)
        case "remove" if len(files) > 8:
            del files[name]
        case "rename":
            files[f"{label}/renamed-{number}.png"] = files.pop(name)
        case "relabel":
            other = "dog" if label == "cat" else "cat"
            files[f"{other}/relabelled-{number}.png"] = files.pop(name)
        case "copy":
            files[f"{label}/copy-{number}.png"] = files[name]


def check_sequence(tmp_path: Path, edits: Sequence[Steps]) -> None:
    """Build after each batch of edits, and each time from nothing too."""
    files = start(24)
    for batch in edits:
        for action, number in batch:
            act(files, action, number)
        assert build(files) == built_from_nothing(files, tmp_path / "nothing")


def test_a_sequence_of_edits_leaves_no_trace(made: Made, tmp_path: Path) -> None:
    edits = [(action, 7 * number) for number, action in enumerate(ACTIONS)]
    check_sequence(tmp_path, [[], edits[:3], edits[3:]])
    # What was there before is not made again.
    made.taken()
    build(start(24))
    assert made.taken() == (0, [])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 99)), min_size=1, max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_no_sequence_of_edits_leaves_a_trace(
    made: Made, tmp_path: Path, edits: list[Steps]
) -> None:
    check_sequence(tmp_path, edits)
