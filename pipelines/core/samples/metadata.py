"""Metadata files: CSV, JSON Lines and Parquet tables that name samples, as plain rows.

Tolerant of what spreadsheets and people do: a byte order mark, upper case and spaces in the header,
spaces around values, short lines. A line that makes no sense is a row with a fault, and the ones
after it are read. A file without a needed column is an error. The whole file is held in memory.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.errors import HeadraceError, did_you_mean


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are read, as the card gives them."""

    path: str
    label: str
    split: str | None = None


class Row(NamedTuple):
    """One row of a metadata file; values without surrounding spaces, empty where there are none."""

    number: int
    """Line of the file, or row of the Parquet table; the first is 1."""
    path: str
    label: str
    split: str
    fault: str
    """What makes the row unreadable, or empty."""


ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


def read(data: bytes, where: str, columns: Columns) -> list[Row]:
    """The rows of a metadata file.

    Args:
        data: the file's bytes.
        where: its path, for messages; its ending says how it is read.
        columns: compared without regard to case and surrounding spaces.

    Raises:
        HeadraceError: an unknown ending, an empty or damaged file, or a needed column that is
            missing or there twice.
    """
    match where.lower().rpartition(".")[2]:
        case "csv":
            return _read_csv(data, where, columns, ",")
        case "tsv":
            return _read_csv(data, where, columns, "\t")
        case "jsonl" | "ndjson":
            return _read_json_lines(data, where, columns)
        case "parquet":
            return _read_parquet(data, where, columns)
    raise HeadraceError(
        "The metadata file is of a kind that is not read.",
        where=where,
        expected=f"a name that ends in {', '.join(ENDINGS)}",
        fix="convert it, and name the new file under `samples.metadata` in the card",
    )


def _read_csv(data: bytes, where: str, columns: Columns, delimiter: str) -> list[Row]:
    lines = list(io.StringIO(_text(data), newline=""))
    records = _csv_records(lines, delimiter)
    header = next((fields for _, fields, _ in records if fields), None)
    if header is None:
        raise _empty(where, "a header line")
    if any(map(_has_odd_characters, header)):
        raise HeadraceError(
            "The metadata file has a header that is not UTF-8, or holds control characters.",
            where=where,
            expected="UTF-8 text, or UTF-16 with a byte order mark",
            found=ascii(delimiter.join(header)[:60]),
            fix="write it as UTF-8, such as by `iconv -f UTF-16LE -t UTF-8`",
        )
    pick = _picker(header, where, columns)
    rows = []
    for number, fields, fault in records:
        has_extra = any(value.strip() for value in fields[len(header) :])
        too_long = f"{len(fields)} values in a table of {len(header)} columns"
        rows.append(_row(number, pick(fields), fault or (too_long if has_extra else "")))
    return rows


def _empty(where: str, expected: str) -> HeadraceError:
    fix = "fill it, or name another under `samples.metadata` in the card"
    return HeadraceError("The metadata file is empty.", where=where, expected=expected, fix=fix)


def _text(data: bytes) -> str:
    """Text with any byte order mark gone; bytes that are not UTF-8 stay recognisable."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="surrogateescape")


def _csv_records(lines: Sequence[str], delimiter: str) -> Iterator[tuple[int, list[str], str]]:
    """Line number, values and fault of each record that is not blank.

    After a record that cannot be read, reading goes on at the next line, so that a stray quote
    costs one row rather than the rest of the file.
    """
    start = 0
    while start < len(lines):
        first = start
        rest = itertools.islice(lines, first, None)
        reader = csv.reader(rest, delimiter=delimiter, strict=True, skipinitialspace=True)
        try:
            for fields in reader:
                if any(field.strip() for field in fields):
                    yield start + 1, fields, ""
                start = first + reader.line_num
        except csv.Error as error:
            yield start + 1, [], f"not a CSV record: {error}"
            start += 1


def _read_json_lines(data: bytes, where: str, columns: Columns) -> list[Row]:
    lines = [
        (number, line) for number, line in enumerate(_text(data).split("\n"), 1) if line.strip()
    ]
    records = [(number, *_json_object(line)) for number, line in lines]
    names = dict.fromkeys(name for _, record, _ in records for name in record)
    if not records:
        raise _empty(where, "a JSON object a line")
    pick = _picker(list(names), where, columns)
    order = list(names)
    return [
        _row(number, pick([record.get(name) for name in order]), fault)
        for number, record, fault in records
    ]


def _json_object(line: str) -> tuple[Mapping[str, Any], str]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {}, f"not JSON: {error}"
    if not isinstance(record, dict):
        return {}, "not a JSON object"
    # Lines may spell a name differently; the table has one column of it.
    return {_fold(name): value for name, value in record.items()}, ""


def _read_parquet(data: bytes, where: str, columns: Columns) -> list[Row]:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        names = file.schema_arrow.names
        pick = _picker(names, where, columns)
        wanted = [name for name in pick(names) if name is not None]
        table = file.read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        raise HeadraceError(
            "The metadata file is not a sound Parquet file.",
            where=where,
            found=str(error).splitlines()[0],
            fix="write it anew, then `dvc repro`",
        ) from None
    values = [table.column(name).to_pylist() for name in wanted]
    blank = [None] * table.num_rows
    values += [blank] * (3 - len(values))
    return [_row(number, row, "") for number, row in enumerate(zip(*values, strict=True), 1)]


def _picker(
    header: Sequence[str], where: str, columns: Columns
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function from a record's values to path, label and split; None for what a record lacks."""
    folded = [_fold(name) for name in header]
    places = []
    for name in filter(None, (columns.path, columns.label, columns.split)):
        if folded.count(_fold(name)) != 1:
            raise _column_fault(name, header, where, folded.count(_fold(name)))
        places.append(folded.index(_fold(name)))

    def pick(values: Sequence[Any]) -> Sequence[Any]:
        return [values[place] if place < len(values) else None for place in places]

    return pick


def _fold(name: str) -> str:
    return name.strip().casefold()


def _column_fault(name: str, header: Sequence[str], where: str, count: int) -> HeadraceError:
    names = [column.strip() for column in header]
    separator = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), None)
    if separator:
        fix = f"the values are separated by {separator!r}; write the file with commas"
    else:
        fix = f"name the column in the card, under `samples`.{did_you_mean(name, names)}"
    return HeadraceError(
        f"The metadata file has {count or 'no'} column{'s' if count else ''} {name!r}.",
        where=where,
        expected=f"one column {name!r}, as the card says",
        found=f"columns {', '.join(map(repr, names[:20]))}",
        fix=fix,
    )


def _row(number: int, values: Iterable[Any], fault: str) -> Row:
    texts = [_plain(value) for value in values]
    path, label, split = (*(text or "" for text in texts), "", "", "")[:3]
    if not fault and None in texts:
        fault = "a value is neither text nor a number"
    if not fault and not path:
        fault = "no path"
    if not fault and any(map(_has_odd_characters, (path, label, split))):
        fault = "a value holds control characters, or bytes that are not UTF-8"
    return Row(number, path, label, split, fault)


def _has_odd_characters(text: str) -> bool:
    # Cc: control characters. Cs: surrogates, which stand for bytes that are not UTF-8.
    return any(unicodedata.category(char) in ("Cc", "Cs") for char in text)


def _plain(value: Any) -> str | None:
    """A value as text; None for lists and the like."""
    match value:
        case None:
            return ""
        case str():
            return value.strip()
        case float():
            # Whole numbers come as floats where a column has gaps; NaN is such a gap.
            return "" if value != value else f"{value:.0f}" if value.is_integer() else str(value)  # noqa: PLR0124
        case int():
            return str(value)
    return None
