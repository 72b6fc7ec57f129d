"""What `check` can find: every kind by a short name that stays the same, and its one line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Kind(StrEnum):
    """A kind of finding and, in `meaning`, why it matters."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """Make a member that equals the string `value` and carries its explanation."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    # params.yaml, the stages' Params and `params:` in dvc.yaml.
    UNTYPED_PARAM = "untyped-param", "A key that no field of the stage's Params stands for."
    MISSING_PARAM = "missing-param", "A field of Params, or a ${key} of dvc.yaml, has no value."
    WRONG_PARAM = "wrong-param", "A value that the stage would refuse."
    UNTRACKED_PARAM = "untracked-param", "DVC would not re-run the stage when the key changes."
    NEEDLESS_PARAM = "needless-param", "DVC re-runs the stage for a key that it does not have."
    UNUSED_PARAM = "unused-param", "A key that nothing reads: changing it does nothing."

    # Code and `deps:` in dvc.yaml.
    BROKEN_MODULE = (
        "broken-module",
        "A stage that cannot be imported, or is not in the form of one.",
    )
    UNDECLARED_IMPORT = "undeclared-import", "DVC would not re-run the stage when the code changes."
    NEEDLESS_DEP = "needless-dep", "DVC re-runs the stage for code that it does not import."
    MISSING_DEP = "missing-dep", "A dep that is not there and that no stage makes."
    UNPINNED_STAGE = "unpinned-stage", "DVC would not re-run the stage under other libraries."

    # Files.
    UNDECLARED_PATH = "undeclared-path", "The command names a path that DVC does not know of."
    UNDECLARED_FILE = "undeclared-file", "The last run opened a file that DVC does not know of."
    UNCACHED_OUT = "uncached-out", "`dvc exp run` would commit the output into git."
    UNHASHABLE_FILE = "unhashable-file", "DVC would stop at it, wait forever, or not see it change."
    UNIGNORED_FILE = "unignored-file", "git or DVC would take in what is not the project's."
    IGNORED_FILE = "ignored-file", "git would not keep what nothing else keeps."

    # One name, four places.
    MISNAMED_STAGE = "misnamed-stage", "Stage, module and section must have one name."
    MISSING_MODULE = "missing-module", "A stage whose code is not there."
    MISSING_TEST = "missing-test", "A stage without its test file."
    MISSING_INIT = "missing-init", "Imports from a folder without __init__.py are not seen."
    ORPHAN_MODULE = "orphan-module", "A module with Params that no stage of dvc.yaml runs."
    PYTHON_IN_DATASETS = "python-in-datasets", "It would shadow Hugging Face's package `datasets`."


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that is out of step.

    Attributes:
        where: `file:key`.
        kind: what it is.
        expected: what would be right.
        found: what is there instead.
        fix: what to do.
    """

    where: str
    kind: Kind
    expected: str
    found: str
    fix: str

    def __str__(self) -> str:
        return (
            f"{self.where}: {self.kind}: expected {self.expected}; found {self.found};"
            f" to mend it, {self.fix}"
        )
