import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.images.containers import FORMATS, ends_early, foreign_format_of, format_of
from tests import pictures

FILES = pictures.files()
ANNOUNCING = {
    name: data
    for name, data in FILES.items()
    # Of several pages only the first counts; the last byte of a fax is padding.
    if name.split(maxsplit=1)[0] in {"png", "gif", "webp", "avif", "tiff"}
    and name not in {"tiff of several pages", "tiff fax"}
}


@pytest.mark.parametrize("name", FILES)
def test_format_is_told_by_the_content(name: str) -> None:
    kind = name.split(maxsplit=1)[0]
    expected = {"tif": "tiff", "pgm": "ppm", "pbm": "ppm"}.get(kind, kind)
    assert format_of(FILES[name]) == expected.upper()


@pytest.mark.parametrize("name", FILES)
def test_whole_file_does_not_end_early(name: str) -> None:
    data = FILES[name]
    assert not ends_early(data, str(format_of(data)))


@pytest.mark.parametrize("name", ANNOUNCING)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 1.0])
def test_cut_file_ends_early(name: str, share: float) -> None:
    data = ANNOUNCING[name]
    assert ends_early(data[: int(share * (len(data) - 1))], str(format_of(data)))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"%PDF-1.7", "PDF"),
        (b"\n <!DOCTYPE html><html>", "HTML or XML"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC"),
        (b"\0\0\1\0\1\0", "icon"),
        (b"just text", None),
        (b"", None),
    ],
)
def test_other_formats_are_named(data: bytes, expected: str | None) -> None:
    assert format_of(data) is None
    assert foreign_format_of(data) == expected


@given(st.binary(max_size=300), st.sampled_from(sorted(FORMATS)))
def test_no_bytes_raise(data: bytes, image_format: str) -> None:
    assert ends_early(data, image_format) in (True, False)
    assert format_of(data) in (None, *FORMATS)
    foreign_format_of(data)


@given(st.data())
def test_no_damaged_file_raises(data: st.DataObject) -> None:
    whole = bytearray(FILES[data.draw(st.sampled_from(sorted(ANNOUNCING)))])
    image_format = str(format_of(bytes(whole)))
    for _ in range(4):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert ends_early(bytes(whole), image_format) in (True, False)
