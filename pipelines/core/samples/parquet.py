"""The layout `parquet`: rows of Parquet files with the bytes of an image and its label.

Reads what Hugging Face writes: structs of `bytes` and `path`, and numbers of classes that the
metadata of the schema names. Labels and paths are read here, row group by row group; the bytes of
images stay where they lie until `cells` reads them. Each row ends up once, as a sample or as a row
with a reason; the rows of a row group whose labels are damaged have one.
"""

from __future__ import annotations

import json
import posixpath
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.card import ParquetImages, safe_path
from pipelines.core.errors import HeadraceError, did_you_mean
from pipelines.core.reasons import Reason
from pipelines.core.samples import cells
from pipelines.core.samples.claims import Claim, dropped_file, settle, sound_files
from pipelines.core.samples.classes import class_numbered, is_plain, split_of_path
from pipelines.core.samples.listing import Dropped, Listing
from pipelines.core.samples.raw import RawFile


class _Row(NamedTuple):
    path: str
    """As the row tells it, or empty."""
    label: Any
    num_bytes: int
    """About; only reading the image tells."""
    fault: str = ""


def in_parquet(
    files: Sequence[RawFile], layout: ParquetImages, labels: Sequence[str] | None, folder: Path
) -> Listing:
    """Samples of the layout `parquet`.

    A sample's path is what its row says, below the file's folder; where rows of a file say nothing
    usable, or the same, it is the file's name without ending and the row's number.

    Args:
        files: the virtual tree.
        layout: what the card says.
        labels: the card's classes, or None to take those that are found.
        folder: raw/.

    Raises:
        HeadraceError: there is no Parquet file that can be opened, or one lacks a column.
    """
    sound, dropped = sound_files(files)
    tables = [file for file in sound if not file.member and _is_parquet(file)]
    claims: list[Claim] = []
    detail = "the file is no Parquet file, or lies in an archive"
    for file in sound:
        if file.member or not _is_parquet(file):
            dropped.append(dropped_file(file, Reason.NOT_LISTED, detail))
    for table in tables:
        try:
            with pq.ParquetFile(
                folder / table.container, page_checksum_verification=True
            ) as opened:
                rows = list(_rows(opened, layout, table))
                names = _class_names(opened.schema_arrow.metadata, layout.label_column)
        except (pa.ArrowException, OSError) as error:
            found = f"no sound Parquet file: {_first_line(error)}"
            dropped.append(dropped_file(table, Reason.UNREADABLE, found))
            continue
        listed = labels if layout.integer_labels else names
        _claim_rows(table, layout, rows, listed, (claims, dropped))
    if not tables:
        raise HeadraceError(
            "The card says that samples lie in Parquet files, and there is none.",
            where="dataset.yaml:samples.layout",
            expected="files in raw/, not in archives, that end in .parquet",
            found=", ".join(sorted({file.container for file in sound})[:5]) or "no file",
            fix="name the layout that the data has: see datasets/README.md",
        )
    return settle(claims, dropped, labels, needs_split=any(claim.split for claim in claims))


def _is_parquet(file: RawFile) -> bool:
    return file.path.lower().endswith(cells.ENDING)


def _claim_rows(
    table: RawFile,
    layout: ParquetImages,
    rows: Sequence[_Row],
    names: Sequence[str] | None,
    into: tuple[list[Claim], list[Dropped]],
) -> None:
    claims, dropped = into
    split = split_of_path(table.container)
    for number, (row, path) in enumerate(zip(rows, _paths(table, rows), strict=True)):
        member = cells.cell(layout.image_column, number)
        image = RawFile(path, table.container, member, row.num_bytes)
        label, fault = _label(row.label, names)
        if row.fault:
            dropped.append(dropped_file(image, Reason.UNREADABLE, row.fault))
        elif fault:
            dropped.append(dropped_file(image, Reason.MALFORMED_ROW, fault))
        else:
            claims.append(Claim(image, label, split, (table.container, number)))


def _paths(table: RawFile, rows: Sequence[_Row]) -> list[str]:
    """A path below raw/ for each row of a file; no two are equal."""
    folder = posixpath.dirname(table.path)
    numbered = [
        f"{table.path[: -len(cells.ENDING)]}/{number:06d}.image" for number in range(len(rows))
    ]
    told = [unicodedata.normalize("NFC", safe_path(row.path) or "") for row in rows]
    uses = Counter(told)
    paths = [
        posixpath.join(folder, name) if name and uses[name] == 1 else other
        for name, other in zip(told, numbered, strict=True)
    ]
    return paths if len(set(paths)) == len(paths) else numbered


def _label(value: Any, names: Sequence[str] | None) -> tuple[str, str]:
    """The label that a value means, and what is wrong with it."""
    match value:
        case None:
            return "", ""
        case bool() | float() | bytes() | list() | dict():
            return "", f"the label is neither text nor a whole number but {type(value).__name__}"
        case int():
            # Hugging Face writes -1 where there is no label.
            return ("", "") if value < 0 else (class_numbered(str(value), names), "")
    label = str(value).strip()
    if not is_plain(label):
        return "", "the label holds control characters"
    return label, ""


def _rows(file: pq.ParquetFile, layout: ParquetImages, table: RawFile) -> Iterator[_Row]:
    schema = file.schema_arrow
    image, label = layout.image_column, layout.label_column
    kind = _type_of(schema, image, "image_column", table)
    if not cells.holds_images(kind):
        raise HeadraceError(
            f"The column {image!r} holds no bytes of images.",
            where=table.container,
            expected="bytes, or structs of `bytes` and `path`",
            found=str(kind),
            fix="name the column of images in the card, under `samples.image_column`",
        )
    _type_of(schema, label, "label_column", table)
    has_path = cells.is_struct(kind) and "path" in cells.fields(kind)
    columns = [label, *([f"{image}.path"] if has_path else [])]
    for group in range(file.metadata.num_row_groups):
        about = file.metadata.row_group(group)
        num_bytes = about.total_byte_size // max(about.num_rows, 1)
        try:
            read = file.read_row_group(group, columns=columns).to_pylist()
        except (pa.ArrowException, OSError) as error:
            fault = f"row group {group} is damaged: {_first_line(error)}"
            yield from [_Row("", None, num_bytes, fault)] * about.num_rows
            continue
        for row in read:
            path = _inside(row, f"{image}.path") if has_path else None
            text = path if isinstance(path, str) and is_plain(path) else ""
            yield _Row(text, _inside(row, label), num_bytes)


def _inside(row: Mapping[str, Any], place: str) -> Any:
    """The value at a place such as `meta.label`; a column of that very name comes first."""
    if place in row:
        return row[place]
    value: Any = row
    for name in place.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _type_of(schema: pa.Schema, place: str, key: str, table: RawFile) -> pa.DataType:
    if place in schema.names:
        found: pa.DataType = schema.field(place).type
        return found
    kind: pa.DataType = pa.struct(list(schema))
    for name in place.split("."):
        inside = cells.fields(kind).get(name)
        if inside is None:
            raise HeadraceError(
                f"The Parquet file has no column {place!r}.",
                where=table.container,
                expected=f"one column {place!r}, as the card says",
                found=f"columns {', '.join(map(repr, schema.names[:20]))}",
                fix=f"name it in the card: `samples.{key}`.{did_you_mean(place, schema.names)}",
            )
        kind = inside
    return kind


def _class_names(metadata: Mapping[bytes, bytes] | None, label: str) -> list[str] | None:
    """The names of classes that Hugging Face keeps in the metadata of the schema, if any."""
    try:
        told = json.loads((metadata or {}).get(b"huggingface", b"{}"))
    except ValueError:
        return None
    names = _inside({"info": told}, f"info.info.features.{label}.names")
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_list else None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
