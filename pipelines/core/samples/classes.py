"""Classes and splits as people spell them, and what they are called here."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

SPLIT_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""How a split may be called in folders and columns, in lower case."""

SPLIT_RANK: Mapping[str, int] = {"test": 0, "val": 1, "train": 2}
"""Of two equal samples the one in the split that stands first here stays, so that what a model is
judged by stays whole and is never seen in training."""


def split_named(text: str) -> str | None:
    """train, val or test for any of its usual names; None for another word."""
    return SPLIT_NAMES.get(text.strip().casefold())


def split_of_path(path: str) -> str:
    """The split that a file's place tells, as it is spelled there, or an empty string.

    That is the outermost folder that is called like a split, or the first such word of its name.

    >>> split_of_path("data/train-00000-of-00002.parquet"), split_of_path("Val/1.tar")
    ('train', 'Val')
    """
    folder, name = posixpath.split(path)
    words = [*folder.split("/"), *re.split(r"[-_.]", name)]
    return next((word for word in words if split_named(word)), "")


def class_numbered(text: str, names: Sequence[str] | None) -> str:
    """The name of class number `text`, the first being 0; `text` where there is no such class."""
    known = names or ()
    is_number = text.isascii() and text.isdecimal() and len(text) < 10
    return known[int(text)] if is_number and int(text) < len(known) else text


def is_plain(text: str) -> bool:
    """Whether a text is free of control characters and of bytes that are not UTF-8."""
    return not any(unicodedata.category(char) in ("Cc", "Cs") for char in text)


def _label_key(text: str) -> str:
    """What labels share that differ by case, surrounding spaces or Unicode form only."""
    return unicodedata.normalize("NFC", text).strip().casefold()


class Labels:
    """Which class each spelling that occurs stands for."""

    def __init__(self, listed: Sequence[str] | None, spellings: Counter[str]) -> None:
        """Take the classes that are listed, or all that occur."""
        self.names = tuple(_found_names(spellings) if listed is None else listed)
        by_key = {_label_key(name): name for name in self.names}
        self.by_spelling = {
            name: by_key[_label_key(name)] for name in spellings if _label_key(name) in by_key
        }
        self.merged = tuple(
            f"{spelling} -> {name}"
            for spelling, name in sorted(self.by_spelling.items())
            if spelling != name
        )


def _found_names(spellings: Counter[str]) -> list[str]:
    """The most frequent spelling of each name, sorted."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in spellings:
        alike[_label_key(name)].append(name)
    best = (min(same, key=lambda name: (-spellings[name], name)) for same in alike.values())
    return sorted(best)
