import pytest

from pipelines.commands.new import blocks
from pipelines.core.errors import HeadraceError

SPACED = """\
# The mill.
stages:
  # First.
  grind:
    cmd: a  # with a remark
    deps: [x,   y]
    # The last word on grind.

  # Second.
  sift:
    cmd: "b"


# At the end.
plots:
- z
"""
DENSE = """\
a:
  x: 1.50
b:
  y: 'two'"""


def test_a_block_follows_its_sibling_and_keeps_its_distance() -> None:
    text = blocks.inserted(SPACED, ("stages", "grind"), "wash:\n  cmd: w\n")
    assert text.replace("  wash:\n    cmd: w\n\n", "") == SPACED
    assert "    # The last word on grind.\n\n  wash:\n    cmd: w\n\n  # Second.\n  sift:" in text
    assert list(blocks.loaded(text)["stages"]) == ["grind", "wash", "sift"]


def test_a_block_may_be_the_last_of_its_mapping() -> None:
    text = blocks.inserted(SPACED, ("stages", "sift"), "wash:\n  cmd: w\n")
    assert text.replace("\n  wash:\n    cmd: w\n", "") == SPACED
    assert '    cmd: "b"\n\n  wash:\n    cmd: w\n\n\n# At the end.\nplots:' in text
    assert list(blocks.loaded(text)["stages"]) == ["grind", "sift", "wash"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("a", "a:\n  x: 1.50\nc:\n  z: 3\nb:\n  y: 'two'\n"),
        ("b", "a:\n  x: 1.50\nb:\n  y: 'two'\nc:\n  z: 3\n"),
    ],
)
def test_where_blocks_stand_close_so_does_the_new_one(after: str, expected: str) -> None:
    assert blocks.inserted(DENSE, (after,), "c:\n  z: 3\n") == expected


def test_a_block_takes_the_indentation_of_its_sibling() -> None:
    text = blocks.inserted("top:\n    a:\n        b: 1\n", ("top", "a"), "c:\n  d: 2\n")
    assert text == "top:\n    a:\n        b: 1\n    c:\n      d: 2\n"


def test_a_line_end_inside_a_text_is_no_line() -> None:
    text = "a: x\u2028y\nb: 2\n"
    assert blocks.inserted(text, ("a",), "c: 3\n") == "a: x\u2028y\nc: 3\nb: 2\n"


READER = """\
stages:
  one:
    cmd: run --in d/${x}/a --more d/${x}/a/b --not e/d/${x}/a
  two:
    # It reads d/${x}/a.
    cmd: >-
      run --in d/${x}/a
    deps:
    - d/${x}/a
    - d/${x}/a.txt
    - d/${x}/ab
"""


def test_only_the_whole_path_is_replaced_in_one_block_and_not_in_comments() -> None:
    text = blocks.replaced(READER, ("stages", "two"), "d/${x}/a", "d/${x}/c")
    changed = [
        (old, new)
        for old, new in zip(READER.splitlines(), text.splitlines(), strict=True)
        if old != new
    ]
    assert changed == [
        ("      run --in d/${x}/a", "      run --in d/${x}/c"),
        ("    - d/${x}/a", "    - d/${x}/c"),
    ]


def test_a_longer_path_is_another_path() -> None:
    text = blocks.replaced(READER, ("stages", "one"), "d/${x}/a", "N")
    assert "run --in N --more d/${x}/a/b --not e/d/${x}/a\n" in text


@pytest.mark.parametrize(
    ("text", "after"), [("{a: {b: 1}, c: 2}\n", "a"), ("a: {b: 1,\n c: 2}\nd: 1\n...\n", "d")]
)
def test_what_cannot_be_added_to_is_refused(text: str, after: str) -> None:
    changed = blocks.inserted(text, (after,), "e: 3\n")
    with pytest.raises(HeadraceError, match=r"dvc.yaml is written in a way"):
        blocks.check_says(changed, {**blocks.loaded(text), "e": 3}, "dvc.yaml")


def test_another_order_of_keys_is_not_the_same() -> None:
    with pytest.raises(HeadraceError, match="written in a way"):
        blocks.check_says("a: 1\nb: 2\n", {"b": 2, "a": 1}, "params.yaml")
