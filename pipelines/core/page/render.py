"""Facts of a dataset as one HTML file that opens without a network.

Equal facts give equal bytes. The page has no script, forbids itself to load anything (a content
security policy), and every text of the data is escaped. Its size is bounded: at most `MAX_CLASSES`
classes, and a number of pictures for each of the reasons that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup, escape

from pipelines.core.card import Card
from pipelines.core.page import charts, drift
from pipelines.core.page.alike import Alike
from pipelines.core.page.charts import Histogram, Scale
from pipelines.core.page.drift import Drift
from pipelines.core.page.facts import Example, Facts, Group
from pipelines.core.records import SPLITS

MAX_CLASSES = 40
"""Beyond, only the largest and the smallest classes are shown."""
MIN_DRAWN = 30
"""Of samples that a split needs to be drawn as a distribution."""
MAX_CHARS = 160
"""Of a text of the data; longer ones are cut."""
_TEMPLATE = Path(__file__).parent / "page.html.j2"


class _Measure(NamedTuple):
    """How a column of numbers is shown."""

    title: str
    scale: Scale
    bounds: tuple[float, float] | None = None
    factor: float = 1.0


_MEASURES = {
    "width": _Measure("Width in pixels", "log"),
    "height": _Measure("Height in pixels", "log"),
    "aspect": _Measure("Aspect: longer side by shorter", "linear"),
    "num_bytes": _Measure("File size in KiB", "log", factor=1 / 1024),
    "brightness": _Measure("Brightness: mean gray level", "linear", (0, 255)),
    "contrast": _Measure("Contrast: deviation of gray levels", "linear", (0, 127.5)),
    "sharpness": _Measure("Sharpness: variance of the Laplacian", "log"),
}


@dataclass(frozen=True)
class About:
    """What the page says of itself.

    Attributes:
        dataset: folder below datasets/.
        card: of the dataset.
        version: the dataset version, SHA-256 of the index of the decoded shards.
    """

    dataset: str
    card: Card
    version: str


class _Class(NamedTuple):
    name: str
    counts: tuple[int, ...]
    total: int
    widths: tuple[float, ...]
    """Of each split's part of the bar, in percent of the largest class."""


class _Picture(NamedTuple):
    example: Example
    url: str | None


class _Reason(NamedTuple):
    group: Group
    share: float
    width: float
    pictures: tuple[_Picture, ...]


def render(
    about: About,
    facts: Facts,
    picture: Callable[[Example], str | None],
    alike: Alike | None = None,
) -> str:
    """The page.

    Args:
        about: whose it is.
        facts: what it tells.
        picture: the `data:` URL of an example, if it has a picture.
        alike: near-duplicates, where they were sought.
    """
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "number": "{:,}".format,
        "percent": _percent,
        "cut": _cut,
        "code": _code,
    }
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    found = facts.num_kept + facts.num_rejected
    splits = {split: int(facts.classes[:, at].sum()) for at, split in enumerate(SPLITS)}
    sparse = [split for split, count in splits.items() if count < min(MIN_DRAWN, facts.num_kept)]
    histograms, constants = _distributions(facts, sparse)
    return template.render(
        about=about,
        found=found,
        kept=facts.num_kept,
        rejected=facts.num_rejected,
        splits=splits,
        num_labels=len(facts.labels),
        imbalance=_imbalance(facts.classes.sum(axis=1)),
        classes=_classes(facts),
        reasons=_reasons(facts, found, picture),
        histograms=histograms,
        constants=constants,
        sparse=sparse,
        few=[split for split in sparse if splits[split]],
        names={name: _names(facts.names[name]) for name in facts.names},
        drifts=_drifts(facts),
        alike=alike,
        picture=picture,
        chart=(charts.WIDTH, charts.HEIGHT),
    )


def _percent(share: float) -> str:
    """A share as people write it: 0.3 %, 12 %; never 0 % of something."""
    if 0 < share < 0.0005:
        return "<\N{NO-BREAK SPACE}0.1\N{NO-BREAK SPACE}%"
    return f"{share:.1%}".replace(".0%", "%").replace("%", "\N{NO-BREAK SPACE}%")


def _code(text: str) -> Markup:
    """Text with what stands in backticks set as code."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if at % 2 else escape(part)
        for at, part in enumerate(parts)
    )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


def _imbalance(sizes: npt.NDArray[np.int64]) -> str:
    """How many times the smallest class goes into the largest."""
    if not len(sizes) or not sizes.min():
        return "a class is empty"
    return f"{charts.short(sizes.max() / sizes.min())} : 1"


def _classes(facts: Facts) -> list[_Class]:
    """Classes by index; of many, the largest and the smallest, by size."""
    totals = facts.classes.sum(axis=1)
    order = list(range(len(totals)))
    if len(order) > MAX_CLASSES:
        order.sort(key=lambda at: (-totals[at], at))
        order = order[: MAX_CLASSES // 2] + order[-MAX_CLASSES // 2 :]
    largest = max(int(totals.max(initial=0)), 1)
    return [
        _Class(
            name=facts.labels[at],
            counts=tuple(facts.classes[at].tolist()),
            total=int(totals[at]),
            widths=tuple(round(100 * count / largest, 2) for count in facts.classes[at].tolist()),
        )
        for at in order
    ]


def _reasons(facts: Facts, found: int, picture: Callable[[Example], str | None]) -> list[_Reason]:
    largest = max((group.num_samples for group in facts.groups), default=1)
    return [
        _Reason(
            group=group,
            share=group.num_samples / found,
            width=round(100 * group.num_samples / largest, 2),
            pictures=tuple(_Picture(example, picture(example)) for example in group.examples),
        )
        for group in facts.groups
    ]


def _distributions(facts: Facts, sparse: Collection[str]) -> tuple[list[Histogram], dict[str, str]]:
    """A chart for every measure that differs between samples, and the value of the others."""
    shown: list[Histogram] = []
    constant: dict[str, str] = {}
    for name, measure in _MEASURES.items():
        values = {
            split: own * measure.factor
            for split, own in facts.numbers[name].items()
            if split not in sparse
        }
        chart = charts.histogram(measure.title, values, measure.scale, measure.bounds)
        if chart is not None:
            shown.append(chart)
        elif first := next((own[0] for own in values.values() if len(own)), None):
            constant[measure.title] = charts.short(float(first))
    return shown, constant


def _names(counts: Mapping[str, npt.NDArray[np.int64]]) -> list[tuple[str, int]]:
    """The names of a column with their counts, the most frequent first."""
    totals = {name: int(count.sum()) for name, count in counts.items()}
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:MAX_CLASSES]


def _drifts(facts: Facts) -> list[tuple[str, list[Drift]]]:
    """For val and test, how far each column that differs is from train's; the farthest first."""
    train, *others = range(len(SPLITS))
    found = []
    for other in others:
        columns: dict[str, Any] = {"label": facts.classes.T}
        for name, counts in facts.names.items():
            columns[name] = np.array([counts[value] for value in sorted(counts)]).T
        drifts = [
            drift.of_counts(name, table[train], table[other])
            for name, table in columns.items()
            if table.size
        ]
        drifts += [
            drift.of_numbers(name, values[SPLITS[train]], values[SPLITS[other]])
            for name, values in facts.numbers.items()
        ]
        known = [it for it in drifts if it is not None]
        if known:
            differing = sorted((it for it in known if it.distance), key=lambda it: -it.distance)
            found.append((SPLITS[other], differing))
    return found
