import pytest

from pipelines.core.images.features import SCHEMA, Features, from_table, tidy, to_table

SEEN = Features(
    sha256="ab" * 32,
    num_bytes=10,
    format="PNG",
    width=3,
    height=4,
    mode="RGB",
    orientation=6,
    num_frames=1,
    brightness=0.5,
    contrast=2.25,
    sharpness=1e6,
    phash=2**64 - 1,
)


@pytest.mark.parametrize("rows", [[], [SEEN], [Features(reason="blank", detail="x"), SEEN]])
def test_table_gives_back_what_went_in(rows: list[Features]) -> None:
    table = to_table(rows)
    assert table.schema == SCHEMA
    assert list(from_table(table)) == rows


def test_message_of_a_library_is_one_short_line_without_addresses() -> None:
    message = "cannot identify <_io.BytesIO object at 0x7fb40c30fbf0>\n  really" + "y" * 500
    assert tidy(message).startswith("cannot identify the data reallyyy")
    assert len(tidy(message)) == 160
