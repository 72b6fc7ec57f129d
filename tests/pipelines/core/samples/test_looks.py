"""Each content is looked at once, wherever it lies and whatever it is called."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.core import stage
from pipelines.core.errors import HeadraceError
from pipelines.core.images import features, look
from pipelines.core.images.features import Features, Limits
from pipelines.core.params import params
from pipelines.core.reasons import Reason
from pipelines.core.samples import looks, raw
from pipelines.core.samples.contents import contents as every_content
from tests import messy

LIMITS = Limits(1 << 20, 1 << 22)
looked_at: list[str] = []


@params
class Params:
    pass


@pytest.fixture(autouse=True)
def in_folder_with_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    Path("params.yaml").write_text(json.dumps({"see": {}}))
    Path("raw").mkdir()
    for name in "abc":
        (Path("raw") / f"{name}.png").write_bytes(image(ord(name)))

    def noted(folder: Path, limits: Limits, one: looks._Look) -> Features:
        looked_at.append(one.file.path)
        return whole(folder, limits, one)

    whole = looks._inspected
    monkeypatch.setattr(looks, "_inspected", noted)


def image(seed: int) -> bytes:
    return messy.encode(messy.stripes("cat", seed), "PNG")


def seen(limits: Limits = LIMITS) -> tuple[dict[str, Features], list[str]]:
    """The features of each file, and the files that were looked at for it."""
    files = raw.list_files(Path("raw"))
    found: dict[str, Features] = {}

    def run(job: stage.Job[Any]) -> dict[str, Any]:
        table = looks.features_of(job, Path("raw"), files, limits)
        rows = features.from_table(table)
        found.update({file.path: row for file, row in zip(files, rows, strict=True)})
        assert list(job.out.iterdir()) == []
        return {}

    looked_at.clear()
    stage.execute(SimpleNamespace(Params=Params, run=run), "see", ["--out", "out"])
    return found, sorted(looked_at)


def expected() -> dict[str, Features]:
    """What a look at each file by itself finds."""
    rows = [
        look.inspect(path.read_bytes(), path.name, LIMITS) for path in sorted(Path("raw").iterdir())
    ]
    return dict(
        zip(
            sorted(path.name for path in Path("raw").iterdir()),
            features.from_table(features.to_table(rows)),
            strict=True,
        )
    )


def test_features_stand_in_the_order_of_the_files() -> None:
    assert seen() == (expected(), ["a.png", "b.png", "c.png"])


def test_nothing_is_looked_at_twice() -> None:
    first, _ = seen()
    assert seen() == (first, [])


def test_a_copy_and_a_new_name_need_no_look() -> None:
    seen()
    (Path("raw") / "copy.png").write_bytes(image(ord("a")))
    Path("raw/b.png").rename("raw/z.png")
    assert seen() == (expected(), [])


def test_a_name_of_another_kind_needs_one_since_the_reason_depends_on_it() -> None:
    (Path("raw") / "noise.png").write_bytes(b"noise")
    seen()
    (Path("raw") / "noise.txt").write_bytes(b"noise")
    found, new = seen()
    assert "noise.txt" in new
    assert found["noise.png"].reason == Reason.UNREADABLE
    assert found["noise.txt"].reason == Reason.UNSUPPORTED_FORMAT


def test_what_cannot_be_read_has_its_reason_in_its_place() -> None:
    (Path("raw") / "b.png").write_bytes(bytes(2 << 20))
    found, _ = seen()
    assert found["b.png"].reason == Reason.TOO_MANY_BYTES
    assert found["b.png"].num_bytes == 2 << 20
    assert not found["a.png"].reason
    assert not found["c.png"].reason


def test_nothing_but_unreadable_files_is_no_error() -> None:
    for path in Path("raw").iterdir():
        path.write_bytes(bytes(2 << 20))
    assert {row.reason for row in seen()[0].values()} == {Reason.TOO_MANY_BYTES}


def test_another_limit_has_all_looked_at_again() -> None:
    seen()
    found, new = seen(Limits(LIMITS.max_bytes, 100))
    assert new == ["a.png", "b.png", "c.png"]
    assert {row.reason for row in found.values()} == {Reason.TOO_MANY_PIXELS}


def test_a_file_that_changes_between_reading_and_looking_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def contents(*arguments: Any) -> Any:
        found = every_content(*arguments)
        Path("raw/a.png").write_bytes(image(1))
        Path("raw/b.png").unlink()
        return found

    monkeypatch.setattr(looks, "contents", contents)
    with pytest.raises(HeadraceError, match="changed while they were looked at"):
        seen()
