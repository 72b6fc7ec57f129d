"""Versions are those of what is installed and takes part."""

import platform
from importlib import metadata
from types import SimpleNamespace

import PIL
import pytest

from pipelines.core.memo.versions import versions


def test_a_library_is_found_by_the_name_that_is_imported() -> None:
    found = versions({"PIL", "google_crc32c"})
    assert found["pillow"] == PIL.__version__
    assert found["google-crc32c"] == metadata.version("google-crc32c")
    assert "pytest" not in found


def test_what_a_library_requires_takes_part() -> None:
    found = versions({"nvidia"})
    assert any(name.startswith("nvidia-nvimgcodec") for name in found)


def test_python_and_the_kind_of_machine_take_part() -> None:
    found = versions(set())
    assert list(found) == ["machine", "python"]
    assert platform.python_version() in found["python"]


def test_names_of_no_library_are_left_out() -> None:
    assert versions({"json", "no_such_thing"}) == versions(set())


def test_another_version_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions({"PIL"})
    other = SimpleNamespace(version="99", requires=None)
    monkeypatch.setattr(metadata, "distribution", lambda _: other)
    assert versions({"PIL"})["pillow"] == "99" != before["pillow"]
