"""Which sample a person means: by key, by path of its file, or by the start of key or content.

A whole key, or a path that leads to one, costs reading one bucket. Only the start of a key, or a
digest, is looked for in all of them (keys and digests alone: 0.1 s for a million samples).
"""

from __future__ import annotations

import bisect
import difflib
import hashlib
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipelines.commands.why.built import Built, read_columns
from pipelines.core.errors import HeadraceError
from pipelines.core.samples.archives import ENDINGS
from pipelines.core.samples.keys import key_of

MIN_DIGITS = 4
"""Of a digest, so that a number is not taken for one."""
_NUM_SHOWN = 8
_NUM_NEIGHBOURS = 2000


@dataclass(frozen=True)
class Found:
    """A sample, or something that never became one."""

    key: str
    """Empty for a row that has no key, such as a line that cannot be read."""
    rejections: tuple[dict[str, str], ...]
    """REJECTED rows of all stages under this key, in the order of the stages."""


def find(built: Built, word: str) -> Found:
    """The sample that `word` means.

    Raises:
        HeadraceError: none, or several.
    """
    dropped = [row for stage in built.route.rejecting for row in built.rejected(stage)]
    place = _below_raw(built, word)
    for key in dict.fromkeys((word, *_keys_of(place))):
        if any(row["key"] == key for row in dropped) or _is_kept(built, key):
            return _found(key, dropped)
    at_place = [row for row in dropped if row["path"] in (place, place.replace("::", "/"))]
    if at_place:
        key = at_place[0]["key"]
        return _found(key, dropped) if key else Found("", tuple(at_place))
    keys, digests = _all_keys(built)
    keys = sorted({*keys, *(row["key"] for row in dropped if row["key"])})
    starts = [*_starting(keys, word), *_with_digest(digests, word)]
    match list(dict.fromkeys(starts)):
        case [key]:
            return _found(key, dropped)
        case []:
            raise _unknown(built, word, keys)
        case several:
            raise _several(word, several)


def _found(key: str, dropped: Iterable[dict[str, str]]) -> Found:
    return Found(key, tuple(row for row in dropped if row["key"] == key))


def _is_kept(built: Built, key: str) -> bool:
    return bool(key) and built.row_of(built.clean, key) is not None


def _below_raw(built: Built, word: str) -> str:
    """A path as people type or complete it, without the way to raw/."""
    path = unicodedata.normalize("NFC", word).removeprefix("./")
    return path.removeprefix(f"{built.raw}/")


def _keys_of(place: str) -> Iterator[str]:
    """The keys that a file at this place may have, likeliest first."""
    for container, path in _virtual(place):
        yield key_of(path)
        # What a key ends in that another sample takes too (`keys.unique_keys`).
        digits = hashlib.sha256(f"{container}\0{path}".encode(errors="surrogatepass")).hexdigest()
        yield from (f"{key_of(path)}-{digits[:length]}" for length in (8, 16, 32))


def _virtual(place: str) -> Iterator[tuple[str, str]]:
    """Container and path, archives taken as unpacked, that a place may mean."""
    if "::" in place:
        container, member = place.split("::", 1)
        yield container, posixpath.join(posixpath.dirname(container), member)
        return
    parts = place.split("/")
    for length in range(1, len(parts)):
        if parts[length - 1].lower().endswith(ENDINGS):
            container = "/".join(parts[:length])
            yield container, "/".join([*parts[: length - 1], *parts[length:]])
    yield place, place


def _all_keys(built: Built) -> tuple[list[str], list[tuple[str, str]]]:
    """All keys that the first manifest holds, and (digest, key) of each."""
    tables = [read_columns(path, ["key", "sha256"]) for path in built.manifests(built.clean)]
    table = pa.concat_tables(tables, promote_options="permissive")
    keys, digests = (
        [str(value) for value in table[name].to_pylist()] for name in ("key", "sha256")
    )
    return keys, sorted(zip(digests, keys, strict=True))


def _starting(keys: list[str], word: str) -> list[str]:
    """Those of the sorted `keys` that start with `word`."""
    start = bisect.bisect_left(keys, word)
    stop = start
    while word and stop < len(keys) and keys[stop].startswith(word):
        stop += 1
    return keys[start:stop]


def _with_digest(digests: list[tuple[str, str]], word: str) -> list[str]:
    """The keys of the content whose SHA-256 starts with `word`."""
    if not re.fullmatch(f"[0-9a-fA-F]{{{MIN_DIGITS},64}}", word):
        return []
    head = word.lower()
    start = bisect.bisect_left(digests, (head, ""))
    found = []
    for digest, key in digests[start:]:
        if not digest.startswith(head):
            break
        found.append(key)
    return found


def _several(word: str, keys: list[str]) -> HeadraceError:
    shown = ", ".join(keys[:_NUM_SHOWN])
    rest = f" and {len(keys) - _NUM_SHOWN:,} more" if len(keys) > _NUM_SHOWN else ""
    return HeadraceError(
        f"{len(keys):,} samples start with {word!r}.", found=shown + rest, fix="name one of them"
    )


def _unknown(built: Built, word: str, keys: list[str]) -> HeadraceError:
    near = _near(key_of(_below_raw(built, word)), keys)
    return HeadraceError(
        f"There is no sample {word!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
        where=str(built.out(built.clean)),
        expected="a key, a path below raw/, container::member, or the start of a key or SHA-256",
        found=f"{len(keys):,} keys" + (f"; near ones: {', '.join(near)}" if near else ""),
    )


def _near(word: str, keys: list[str]) -> list[str]:
    """The keys most like `word`: of its neighbours in the order, and of those with its last part.

    Comparing it with every key would take seconds for a million.
    """
    at = bisect.bisect_left(keys, word)
    around = keys[max(0, at - _NUM_NEIGHBOURS) : at + _NUM_NEIGHBOURS]
    last = word.rpartition("/")[2]
    alike = [key for key in keys if key.rpartition("/")[2] == last][:_NUM_NEIGHBOURS]
    return difflib.get_close_matches(word, dict.fromkeys([*alike, *around]), n=3, cutoff=0.6)
