"""What `why` says of a stage: facts, each a line for people and values for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipelines.core.report import Json

Outcome = Literal[
    "passed", "rejected", "not built", "trained", "not trained", "judged", "not judged"
]


@dataclass(frozen=True)
class Fact:
    """One thing to know.

    Attributes:
        name: what it is about, in a word or two.
        text: what is to be said of it, in a line.
        values: the same for programs.
    """

    name: str
    text: str
    values: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A stage on the way of a sample, and what came of it there."""

    stage: str
    outcome: Outcome
    facts: tuple[Fact, ...]

    @property
    def json(self) -> dict[str, Json]:
        """The step as an object."""
        values: dict[str, Json] = {"stage": self.stage, "outcome": self.outcome}
        for fact in self.facts:
            values |= fact.values
        return values

    def lines(self, stage_width: int, name_width: int) -> list[str]:
        """The step as lines: the stage and its outcome, then a line a fact."""
        head = f"{self.stage:<{stage_width}}  {self.outcome}"
        return [head, *(f"  {fact.name:<{name_width}}  {fact.text}" for fact in self.facts)]


def not_built(stage: str, where: str) -> Step:
    """A stage that has not run."""
    text = f"{where} is not there: dvc repro (or dvc pull)"
    return Step(stage, "not built", (Fact("missing", text, {"missing": where}),))
