"""The near-duplicates of a sample: the others of its cluster, kept and rejected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from pipelines.commands.why.built import Built, read_columns
from pipelines.commands.why.step import Fact
from pipelines.core.reasons import Reason
from pipelines.core.report import Json

_NUM_NAMED = 5


def near_duplicates(built: Built, row: Mapping[str, Any]) -> list[Fact]:
    """What looks like a sample that `clean` kept; nothing where it is like no other.

    Args:
        built: the project.
        row: MANIFEST row of the sample.
    """
    if not row.get("cluster"):
        return []
    kept: list[dict[str, Any]] = []
    for path in built.manifests(built.clean):
        columns = read_columns(path, ["key", "label", "split", "phash", "cluster"])
        same = columns.filter(pc.field("cluster") == row["cluster"])
        kept += [_compared(row, it) for it in same.to_pylist() if it["key"] != row["key"]]
    kept.sort(key=lambda it: (it["distance_bits"], it["key"]))
    dropped = [
        it["key"]
        for it in built.rejected(built.clean)
        if it["reason"] == Reason.NEAR_DUPLICATE and it["detail"].startswith(f"like {row['key']}: ")
    ]
    values: dict[str, Json] = {
        "cluster": row["cluster"],
        "phash": f"{row['phash']:016x}",
        "near_duplicates": [*kept],
        "near_duplicates_rejected": [*dropped],
    }
    own = "itself" if row["cluster"] == row["key"] else row["cluster"]
    facts = [Fact("cluster", f"that of {own}; hash {values['phash']}", values)]
    if kept:
        shown = [f"{it['key']} ({it['split']}, {it['distance_bits']} bits)" for it in kept]
        named = ", ".join(shown[:_NUM_NAMED])
        facts.append(Fact("alike", f"{len(kept)} kept, the nearest of which are {named}"))
    if dropped:
        named = ", ".join(dropped[:_NUM_NAMED])
        facts.append(Fact("alike", f"{len(dropped)} rejected as near-duplicates of it: {named}"))
    return facts


def _compared(row: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    distance = (row["phash"] ^ other["phash"]).bit_count()
    return {
        **{name: other[name] for name in ("key", "label", "split")},
        "distance_bits": distance,
    }
