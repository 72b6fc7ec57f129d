"""Keys: the names of samples, from their paths.

A key is unique in a dataset, reads like the path it comes from, and is safe wherever it goes: in a
tar member, whose part before the first dot WebDataset takes for the key, in a file name and in a
report. It depends on the path alone, so a sample keeps its key when others come and go; the one
exception is a sample whose key another one takes too.
"""

from __future__ import annotations

import hashlib
import posixpath
import unicodedata
from collections import Counter
from collections.abc import Sequence

MAX_KEY_BYTES = 90
"""In UTF-8: leaves a USTAR name (100 bytes) room for an ending."""


def key_of(path: str) -> str:
    """The key of a path below raw/, archives taken as unpacked; not yet unique.

    The ending goes; letters and digits of any script, `_`, `-` and `/` stay; all else becomes `_`.
    Paths of more than MAX_KEY_BYTES are cut, and end in 16 digits of their SHA-256.

    >>> key_of("2026-12-01/my cat.v2.JPG")
    '2026-12-01/my_cat_v2'
    """
    normal = unicodedata.normalize("NFC", path)
    stem = posixpath.splitext(normal)[0].strip("/")
    key = "".join(char if char.isalnum() or char in "_-/" else "_" for char in stem) or "_"
    if len(key.encode()) <= MAX_KEY_BYTES:
        return key
    return _with_ending(key, hashlib.sha256(normal.encode(errors="surrogatepass")).hexdigest()[:16])


def unique_keys(places: Sequence[tuple[str, str]]) -> list[str]:
    """The keys of different files, in their order.

    Where several come to one key (`a.jpg` and `a.png`, or one path in two archives), each of these
    ends in digits of the SHA-256 of its container and path: 8, or as many as make them differ.

    Args:
        places: container and path of each file; no two are equal.
    """
    keys = [key_of(path) for _, path in places]
    for num_digits in (8, 16, 32):
        uses = Counter(keys)
        if len(uses) == len(keys):
            break
        keys = [
            key if uses[key] == 1 else _with_ending(key_of(place[1]), _digest(place)[:num_digits])
            for key, place in zip(keys, places, strict=True)
        ]
    assert len(set(keys)) == len(keys), "two samples have one key"
    return keys


def _digest(place: tuple[str, str]) -> str:
    return hashlib.sha256("\0".join(place).encode(errors="surrogatepass")).hexdigest()


def _with_ending(key: str, digits: str) -> str:
    """`key-digits`, cut between characters where it would be too long."""
    room = MAX_KEY_BYTES - len(digits) - 1
    return key.encode()[:room].decode(errors="ignore") + "-" + digits
