import hashlib
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.samples.keys import MAX_KEY_BYTES, key_of, unique_keys


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("train/cat/1.jpg", "train/cat/1"),
        ("2026-12-01/my cat.v2.JPG", "2026-12-01/my_cat_v2"),
        (".hidden.png", "_hidden"),
        (".png", "_png"),
        ("no_ending", "no_ending"),
        ("a.b/c.d", "a_b/c"),
        ("/a/b.png", "a/b"),
        ("größe/写真 1.png", "größe/写真_1"),
        ("u\u0308ber.png", "\u00fcber"),
        ("a'b\"c\\d:e.png", "a_b_c_d_e"),
    ],
)
def test_key_reads_like_the_path(path: str, key: str) -> None:
    assert key_of(path) == key


def test_long_path_is_cut_and_ends_in_digits_of_its_hash() -> None:
    path = "x" * 200 + ".png"
    assert key_of(path) == "x" * 73 + "-" + hashlib.sha256(path.encode()).hexdigest()[:16]
    assert len(key_of("写" * 90 + ".png").encode()) <= MAX_KEY_BYTES


def test_colliding_keys_all_get_digits_and_others_none() -> None:
    keys = unique_keys([("a.jpg", "a.jpg"), ("a.png", "a.png"), ("b.png", "b.png")])
    digits = hashlib.sha256(b"a.jpg\0a.jpg").hexdigest()[:8]
    assert keys[0] == f"a-{digits}"
    assert keys[1].startswith("a-")
    assert keys[1] != keys[0]
    assert keys[2] == "b"


def test_one_path_in_many_archives_gives_as_many_keys() -> None:
    places = [(f"{number}.zip", "x" * 200 + ".jpg") for number in range(10_000)]
    keys = unique_keys(places)
    assert len(set(keys)) == 10_000
    assert max(len(key.encode()) for key in keys) <= MAX_KEY_BYTES


def test_name_that_looks_like_a_made_key_collides_with_none() -> None:
    first = unique_keys([("a.jpg", "a.jpg"), ("a.png", "a.png")])[0]
    keys = unique_keys([("a.jpg", "a.jpg"), ("a.png", "a.png"), (f"{first}.gif", f"{first}.gif")])
    assert len(set(keys)) == 3


PATHS = st.lists(
    st.text(alphabet="ab. _/é写\u0301", min_size=1, max_size=120), unique=True, max_size=12
)


@given(PATHS)
def test_keys_are_unique_safe_and_independent_of_order(paths: list[str]) -> None:
    places = [(path, path) for path in paths]
    keys = unique_keys(places)
    assert len(set(keys)) == len(keys)
    assert unique_keys(places[::-1]) == keys[::-1]
    for key in keys:
        assert "." not in key
        assert 0 < len(key.encode()) <= MAX_KEY_BYTES
        assert not key.startswith("/")
        assert all(char.isalnum() or char in "_-/" for char in key)
        tarfile.TarInfo(f"{key}.json").tobuf(tarfile.USTAR_FORMAT)
