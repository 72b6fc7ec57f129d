"""Classes and splits as people spell them, and what they are called here."""

from __future__ import annotations

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
