"""A sample's features beside the thresholds of a stage, and the params that a reason names.

Params say by their names what they bound: `min_contrast` is the least `contrast`. So this holds for
every stage whose params are called so, also for one that `python -m pipelines new` made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.commands.why.step import Fact
from pipelines.core.buckets import MIB
from pipelines.core.reasons import Reason
from pipelines.core.report import Json
from pipelines.core.route import Settings

_BOUNDS = {"min_": "at least", "max_": "at most"}
_BUDGET = "max_rejected_fraction"
"""Of a stage as a whole, and no threshold of a sample."""


def measures(row: Mapping[str, Any]) -> dict[str, float]:
    """Everything of a MANIFEST row that a threshold can be about, by name."""
    short, long = sorted((row["width"], row["height"]))
    found = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {
        "file_mib": row["num_bytes"] / MIB,
        "megapixels": row["width"] * row["height"] / 1e6,
        "side_px": short,
        "aspect_ratio": long / max(short, 1),
        **found,
    }


def passed(row: Mapping[str, Any], settings: Settings) -> list[Fact]:
    """The thresholds of a stage that a kept sample was held against."""
    found = measures(row)
    checks: list[Json] = []
    texts = []
    for param, limit in settings.used.items():
        name = param[4:]
        if param[:4] not in _BOUNDS or name not in found or param == _BUDGET:
            continue
        bound = _BOUNDS[param[:4]]
        texts.append(f"{name} {found[name]:.4g}, {bound} {limit:g}{_now(param, settings)}")
        checks.append({"measure": name, "value": found[name], "param": param, "limit": limit})
    if not checks:
        return []
    names = ["thresholds", *[""] * (len(checks) - 1)]
    return [
        Fact(name, text, {"thresholds": checks}) for name, text in zip(names, texts, strict=True)
    ]


def rejection(row: Mapping[str, str], settings: Settings) -> list[Fact]:
    """Why a stage dropped a sample: the reason, its meaning, and the params that it names."""
    meaning = next((reason.meaning for reason in Reason if reason == row["reason"]), "")
    # A stage of one's own has reasons of its own; any of its thresholds may be meant.
    names = re.findall(r"`(\w+)`", meaning) if meaning else _thresholds(settings.used)
    named = [name for name in names if name in settings.used]
    shown = ", ".join(f"{name} {settings.used[name]}{_now(name, settings)}" for name in named)
    facts = [
        Fact("reason", f"{row['reason']}: {meaning}" if meaning else row["reason"]),
        Fact("detail", row["detail"]),
        Fact("place", row["path"]),
        Fact("threshold" if meaning else "thresholds", shown) if named else None,
    ]
    values: dict[str, Json] = {
        "reason": row["reason"],
        "meaning": meaning or None,
        "detail": row["detail"],
        "place": row["path"],
        "params": {name: settings.used[name] for name in named},
        "params_now": {name: settings.now.get(name) for name in named},
    }
    shown_facts = [fact for fact in facts if fact is not None and fact.text]
    return [Fact(shown_facts[0].name, shown_facts[0].text, values), *shown_facts[1:]]


def _thresholds(names: Iterable[str]) -> list[str]:
    return [name for name in names if name[:4] in _BOUNDS and name != _BUDGET]


def _now(param: str, settings: Settings) -> str:
    """A remark where params.yaml has changed since the stage ran."""
    now, used = settings.now.get(param), settings.used[param]
    return "" if now == used else f" (params.yaml now says {now}: dvc repro)"
