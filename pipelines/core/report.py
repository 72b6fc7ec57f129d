"""Reports: what a stage did, small enough to read in a pull request.

Sorted keys, rounded floats, one value a line: two runs that did the same write the same bytes, and
a change of the data shows as a change of a few lines. Nothing in a report may depend on the clock,
the machine or the number of workers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from pipelines.core.errors import HeadraceError
from pipelines.core.storage import write_text

Json: TypeAlias = (
    "bool | int | float | str | list[Json] | tuple[Json, ...] | Mapping[str, Json] | None"
)
Report: TypeAlias = Mapping[str, Json]

SIGNIFICANT_DIGITS = 6


def rounded(value: Json) -> Json:
    """Floats to six significant digits, recursively.

    NaN and infinities, which JSON lacks, become null.
    """
    match value:
        case float():
            return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None
        case Mapping():
            return {key: rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [rounded(item) for item in value]
        case _:
            return value


def dumps(report: Report) -> str:
    """The canonical text of a report: sorted, indented, with a final newline."""
    return json.dumps(rounded(report), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write(path: Path, report: Report) -> None:
    """Write a report atomically."""
    write_text(path, dumps(report))


def check_conserved(stage: str, report: Report) -> None:
    """Hold a stage to its law: samples in = samples kept + samples rejected.

    Applies to every report that counts `samples_in`; the three counts must then be there and
    balance.

    Raises:
        HeadraceError: a sample was lost or counted twice (a defect of the stage, never of the
            data).
    """
    if "samples_in" not in report:
        return
    counts = [report.get(name) for name in ("samples_in", "samples_kept", "samples_rejected")]
    match counts:
        case [int(entered), int(kept), int(rejected)] if entered == kept + rejected:
            return
    raise HeadraceError(
        f"Stage {stage} lost count of its samples; nothing was written.",
        expected="samples_in = samples_kept + samples_rejected, each a whole number",
        found=" / ".join(str(count) for count in counts),
        fix=f"this is a defect of the stage's code: see pipelines/{stage}.py",
    )
