"""Errors for the person who must mend them.

A `HeadraceError` is a fault of configuration, data as a whole or the machine, told in the same five
parts everywhere: what is wrong, where, what was expected, what was found, and what to do. Stages
print it without a traceback and exit with 1. Anything else that escapes a stage is a defect of
Headrace and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadraceError(Exception):
    """A fault that the user can mend.

    Args:
        what: one sentence: what is wrong.
        where: `file`, `file:key` or `file:row`.
        expected: what would have been right.
        found: what was there instead.
        fix: what to do, best as a command that can be pasted.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        found: str | None = None,
        fix: str | None = None,
    ) -> None:
        # All five go to Exception's own args, so that the error survives pickling on its way from a
        # Dask worker.
        super().__init__(what, where, expected, found, fix)
        self.what = what
        self.where = where
        self.expected = expected
        self.found = found
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, self.args

    def __str__(self) -> str:
        parts = (
            ("where", self.where),
            ("expected", self.expected),
            ("found", self.found),
            ("fix", self.fix),
        )
        return "\n".join(
            [self.what, *(f"  {name + ':':<9} {text}" for name, text in parts if text)]
        )


def _rebuild(
    what: str, where: str | None, expected: str | None, found: str | None, fix: str | None
) -> HeadraceError:
    return HeadraceError(what, where=where, expected=expected, found=found, fix=fix)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest of `choices`, or an empty string where none is near."""
    near = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""
