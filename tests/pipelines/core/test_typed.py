from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from pipelines.core.errors import HeadraceError
from pipelines.core.typed import describe, faults, read_yaml, typed, validate


@typed
class Size:
    width: Annotated[int, Field(ge=1)]


@typed
class Settings:
    rate: Annotated[float, Field(gt=0)]
    kind: Literal["a", "b"]
    sizes: tuple[int, ...]
    size: Size


GOOD: Mapping[str, Any] = {"rate": 1, "kind": "a", "sizes": [1, 2], "size": {"width": 3}}


def test_good_values_become_a_frozen_dataclass() -> None:
    settings = validate(Settings, GOOD, where="x.yaml")
    assert (settings.rate, settings.sizes, settings.size.width) == (1.0, (1, 2), 3)
    with pytest.raises(FrozenInstanceError):
        settings.rate = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"rate": "fast"}, "rate: expected a valid number, found 'fast' (text)"),
        ({"rate": "1"}, "rate: expected a valid number, found '1' (text)"),
        ({"rate": True}, "rate: expected a valid number, found True (true/false)"),
        ({"rate": 0}, "rate: expected greater than 0, found 0 (a whole number)"),
        ({"rate": float("nan")}, "rate: expected a finite number, found nan (a number)"),
        ({"kind": "c"}, "kind: expected 'a' or 'b', found 'c' (text)"),
        ({"sizes": 3}, "sizes: expected a valid array, found 3 (a whole number)"),
        ({"size": {"width": 0}}, "size.width: expected greater than or equal to 1, found 0"),
        ({"size": 3}, "size: expected a mapping, found 3 (a whole number)"),
        ({"kinds": "a"}, "kinds: unknown key. Did you mean 'kind'?"),
    ],
)
def test_a_fault_names_key_expected_and_found(change: Mapping[str, Any], line: str) -> None:
    found = faults(Settings, {**GOOD, **change})
    assert len(found) == 1
    assert found[0].startswith(line)


def test_all_faults_come_in_one_error() -> None:
    with pytest.raises(HeadraceError) as caught:
        validate(Settings, {"rate": 0, "kind": "c"}, where="x.yaml", prefix="s.")
    assert str(caught.value).splitlines() == [
        "x.yaml has 4 faults:",
        "  s.rate: expected greater than 0, found 0 (a whole number)",
        "  s.kind: expected 'a' or 'b', found 'c' (text)",
        "  s.sizes: missing, expected a value",
        "  s.size: missing, expected a value",
    ]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (b"a:\n\tb: 1", "x.yaml:2:1\n  found:    a tab where YAML wants spaces"),
        (b"a: 1\na: 2", 'duplicate key "a"'),
        (b"a: [1", "x.yaml:"),
        (b"- a", "must hold a mapping"),
        (b"", "must hold a mapping"),
        (b"1: a", "must be text"),
        (b"null: a", "must be text"),
        (b"a: \xff", "not UTF-8"),
        (b"a: 2026-13-01", "month must be in 1..12"),
        (b"a: !!int word", "not valid YAML"),
        (b"a: " + 5000 * b"[", "not valid YAML"),
        (b"a: !!python/object:os.system {}", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_told_in_words(tmp_path: Path, text: bytes, part: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(text)
    with pytest.raises(HeadraceError) as caught:
        read_yaml(path)
    assert part in str(caught.value)


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=r"cannot be read(.|\n)*Is a directory"):
        read_yaml(tmp_path)


def test_a_missing_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(HeadraceError, match=r"There is no x.yaml(.|\n)*copy it"):
        read_yaml(tmp_path / "x.yaml", fix="copy it")


def test_a_float_written_by_dvc_is_a_float_and_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbflr: 1e-05\n")
    assert read_yaml(path) == {"lr": 0.00001}


def test_a_long_value_is_described_in_short() -> None:
    assert describe("x" * 200) == f"'{'x' * 56}... (text)"
    assert describe(None) == "nothing"
