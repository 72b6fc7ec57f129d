"""Where a sample came from: the source of its file, and who gave it its label and split.

Looks at the card and, for the layout `table`, at the metadata file in raw/, for the line that names
the sample. A metadata file of more than MAX_METADATA_MIB is not read.
"""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.commands.why.built import Built
from pipelines.core import card
from pipelines.core.buckets import MIB, split_of
from pipelines.core.card import Card, Folders, Table
from pipelines.core.errors import HeadraceError
from pipelines.core.report import Json
from pipelines.core.route import Settings
from pipelines.core.samples import metadata, raw
from pipelines.core.samples.classes import split_named, split_of_path

MAX_METADATA_MIB = 64


class Told(NamedTuple):
    """What is said of a label or split, and by whom it was given."""

    text: str
    values: dict[str, Json]


class Line(NamedTuple):
    """The row of a metadata file that names a sample."""

    table: str
    row: metadata.Row


def read_card(built: Built) -> Card | None:
    """The card; None where it is not there or wrong, which `check` and `dvc repro` tell."""
    try:
        return card.load(built.path(built.clean.reads["card"]))
    except HeadraceError:
        return None


def source(told: Card | None, container: str) -> str | None:
    """The URL that a file of raw/ came from, as far as the card alone can say."""
    for entry in told.sources if told else ():
        place = entry.to or entry.url.rstrip("/").rpartition("/")[2]
        if container == place or container.startswith(f"{place}/"):
            return entry.url
    return told.sources[0].url if told and len(told.sources) == 1 else None


def line_of(told: Card | None, folder: Path, row: Mapping[str, Any]) -> Line | None:
    """The line of the metadata file that names the sample of a MANIFEST row, if it can be found."""
    if told is None or not isinstance(told.samples, Table):
        return None
    layout = told.samples
    columns = metadata.Columns(layout.path_column, layout.label_column, layout.split_column)
    place = virtual_path(row)
    for container, member in _places_of(layout.metadata, row):
        try:
            data = raw.read(folder, container, member, MAX_METADATA_MIB * MIB)
            rows = metadata.read(data, layout.metadata, columns)
        except (raw.ReadFault, HeadraceError):
            continue
        for number in rows:
            if place in _meant(number.path, posixpath.dirname(layout.metadata)):
                return Line(f"{container}/{member}" if member else container, number)
    return None


def virtual_path(row: Mapping[str, Any]) -> str:
    """The path of a sample's file below raw/, archives taken as unpacked."""
    folder = posixpath.dirname(row["container"])
    path = posixpath.join(folder, row["member"]) if row["member"] else row["container"]
    return _normal(path)


def _places_of(path: str, row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Where a metadata file may lie: in the sample's archive, or loose."""
    if not row["member"]:
        return [(path, "")]
    folder = posixpath.dirname(row["container"])
    inside = posixpath.relpath(path, folder) if folder else path
    return [(row["container"], inside), (path, "")]


def _meant(path: str, folder: str) -> set[str]:
    """The virtual paths that a row's path may stand for (as `core.samples.find` reads them)."""
    spellings = {path, path.replace("\\", "/")}
    return {_normal(posixpath.join(top, name)) for name in spellings for top in (folder, "")}


def _normal(path: str) -> str:
    return unicodedata.normalize("NFC", posixpath.normpath(path))


def label(told: Card | None, row: Mapping[str, Any], line: Line | None) -> Told:
    """The sample's label, and who gave it."""
    values: dict[str, Json] = {"label": row["label"], "label_index": row["label_index"]}
    text = f"{row['label']} (class {row['label_index']})"
    if line is not None:
        values["label_from"] = f"{line.table}:{line.row.number}"
        return Told(f"{text}, from line {line.row.number} of {line.table}", values)
    if told is not None and isinstance(told.samples, Folders):
        folder = posixpath.dirname(virtual_path(row))
        values["label_from"] = folder
        return Told(f"{text}, from the folder {folder}", values)
    return Told(text, values)


def split(told: Card | None, row: Mapping[str, Any], line: Line | None, settings: Settings) -> Told:
    """The sample's split, and whether it was given, drawn by a hash, or is that of its cluster."""
    given = _given(told, row, line)
    drawn = _drawn(row, settings)
    shares = {name: settings.used.get(f"{name}_fraction") for name in ("val", "test")}
    shown = ", ".join(f"{name}_fraction {share}" for name, share in shares.items())
    if given is not None:
        text, how = f"given by {given}", "given"
    elif row.get("cluster") and settings.used.get("near_duplicates") in ("keep_together", "drop"):
        text, how = "which its cluster of near-duplicates shares", "cluster"
    elif drawn != row["split"]:
        # Only a split that was given can differ from the draw.
        text, how = "given (a hash of the content would have drawn another)", "given"
    elif told is not None and isinstance(told.samples, Table) and told.samples.split_column:
        if line is None:
            text, how = "given, or drawn by a hash of the content, which says the same", "unknown"
        else:
            text, how = f"the line gives none, so drawn by a hash of the content ({shown})", "drawn"
    else:
        text, how = f"drawn by a hash of the content ({shown})", "drawn"
    values: dict[str, Json] = {"split": row["split"], "split_by": how, "split_from": given}
    return Told(f"{row['split']}, {text}", values)


def _given(told: Card | None, row: Mapping[str, Any], line: Line | None) -> str | None:
    """Who gave the split, where somebody visibly did."""
    if told is None:
        return None
    if isinstance(told.samples, Table):
        if line is None or split_named(line.row.split) is None:
            return None
        return f"column {told.samples.split_column!r} of line {line.row.number} of {line.table}"
    if not isinstance(told.samples, Folders):
        return f"the name of {row['container']}" if split_of_path(row["container"]) else None
    above = virtual_path(row).split("/")[:-2]
    folder = next((name for name in above if split_named(name)), None)
    return f"the folder {folder!r}" if folder else None


def _drawn(row: Mapping[str, Any], settings: Settings) -> str | None:
    try:
        return split_of(
            row["sha256"],
            val_fraction=settings.used["val_fraction"],
            test_fraction=settings.used["test_fraction"],
        )
    except KeyError:
        return None
