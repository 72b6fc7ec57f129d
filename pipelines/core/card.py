"""The card of a dataset: `dataset.yaml`, what the data is, where it comes from, how it is labelled.

    title: Cats and dogs
    description: ...          # optional text
    licence: MIT
    origin: where it comes from, and how it was cut
    task: classification
    labels: [cat, dog]        # class index = place in the list; without it, the names found, sorted
    sources:
      - url: source           # relative to the card's folder, absolute, or any fsspec URL
        sha256: ...           # optional: of the file, or of the listing of a folder
        num_bytes: ...        # optional
        to: cats.zip          # optional: place below raw/
    samples:
      layout: table           # or: folders, webdataset, parquet
      metadata: labels.csv    # a path below raw/, also inside an archive
      path_column: path
      label_column: label
      split_column: split     # optional

A source is a file or a folder. A file lies below raw/ under the last part of its URL, the content
of a folder directly in raw/, unless `to` says otherwise. Archives (zip, tar) stay archives and are
read as if unpacked where they lie.

Layout `table`: each row of the metadata file names a file, its label and maybe its split.
Layout `folders`: the folder that holds a file names its class, and folders above it called train,
val and test its split. pipelines/core/samples/find.py reads them.
Layout `webdataset`: tar members of one name are one sample. Layout `parquet`: a row is one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field

from pipelines.core.errors import did_you_mean
from pipelines.core.typed import describe, faults, faulty, read_yaml, typed, validate

_SECRET_KEYS = re.compile(
    r"(?i)^(.*(signature|token|password|passwd|secret|credential|api-?_?key|accesskey(id)?)|sig)$"
)


def safe_path(text: str) -> str | None:
    """`text` as a clean relative path, or None where it is absolute, leaves its folder or is empty.

    >>> safe_path("./a//b.zip"), safe_path("a/../../b"), safe_path("/etc/passwd")
    ('a/b.zip', None, None)
    """
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or text.startswith("/") or ".." in parts or "\0" in text:
        return None
    return "/".join(parts)


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("expected some text, found none")
    return value


def _has_controls(value: str) -> bool:
    return any(unicodedata.category(char) == "Cc" for char in value)


def _label_list(labels: tuple[str, ...]) -> tuple[str, ...]:
    if len(labels) < 2:
        raise ValueError(f"expected at least two labels, found {len(labels)}")
    seen: dict[str, str] = {}
    for label in labels:
        key = unicodedata.normalize("NFC", label).strip().casefold()
        if not key:
            raise ValueError(f"expected names, found {label!r}")
        if _has_controls(label):
            raise ValueError(f"expected names without control characters, found {label!r}")
        if key in seen:
            raise ValueError(
                f"{seen[key]!r} and {label!r} are one label (case and spaces do not tell apart)"
            )
        seen[key] = label
    return labels


def _url(value: str) -> str:
    if not value.strip():
        raise ValueError("expected a path or URL, found none")
    if _has_controls(value):
        raise ValueError(f"expected a path or URL without control characters, found {value!r}")
    if value.lstrip().startswith(("pipe:", "|", "!")):
        raise ValueError("a command in place of a URL is refused: nothing here runs a shell")
    # Chained URLs (`zip://a::https://...`) hold several; none may carry a secret.
    for part in value.split("::"):
        split = urlsplit(part)
        keys = [key for key, _ in parse_qsl(split.query) if _SECRET_KEYS.match(key)]
        if split.netloc and ":" in split.netloc.rpartition("@")[0]:
            keys.append("password")
        if keys:
            # The value itself is not repeated: this text ends up in terminals and logs.
            raise ValueError(
                f"holds a secret ({keys[0]}), and the card is in git: take it out, and give it in"
                " the environment (AWS_*, FSSPEC_<PROTOCOL>) or fsspec's own configuration"
            )
    return value


def _sha256(value: str) -> str:
    if not re.fullmatch("[0-9a-fA-F]{64}", value):
        raise ValueError(f"expected 64 hexadecimal digits, found {describe(value)}")
    return value.lower()


def _relative(value: str) -> str:
    path = safe_path(value)
    if path is None:
        raise ValueError(f"expected a relative path below raw/, without `..`, found {value!r}")
    return unicodedata.normalize("NFC", path)


Text = Annotated[str, AfterValidator(_text)]
RelativePath = Annotated[str, AfterValidator(_relative)]


@typed
class Source:
    """One thing that ingest brings into raw/."""

    url: Annotated[str, AfterValidator(_url)]
    """A file or folder: relative to the card's folder, absolute, or any fsspec URL."""
    sha256: Annotated[str, AfterValidator(_sha256)] | None = None
    """Of the file as it comes; of a folder, of its listing (pipelines/ingest.py says which)."""
    num_bytes: Annotated[int, Field(ge=0)] | None = None
    """Size as it comes, of a folder in all."""
    to: RelativePath | None = None
    """Place below raw/; None: the last part of a file's URL, raw/ itself for a folder."""


@typed
class Table:
    """Samples that the rows of a metadata file name."""

    layout: Literal["table"]
    metadata: RelativePath
    """CSV, JSON Lines or Parquet: a virtual path, so also inside an archive."""
    path_column: Text
    """Column with the file's path, relative to the folder of the metadata file."""
    label_column: Text
    split_column: Text | None = None
    """None: splits are drawn by content."""


@typed
class Folders:
    """Samples whose class is the name of the folder that holds them."""

    layout: Literal["folders"]


@typed
class WebDataset:
    """Samples in tars whose members of one name, up to its first dot, belong together."""

    layout: Literal["webdataset"]
    label_ending: Literal["cls", "json", "txt"]
    """Ending of the member that tells the label."""
    label_field: Text | None = None
    """Of a JSON label, its place there, such as `meta.label`; None: `label`."""
    integer_labels: bool = False
    """Labels are places in the card's `labels`, counted from 0."""


@typed
class ParquetImages:
    """Samples in the rows of Parquet files that hold the bytes of images."""

    layout: Literal["parquet"]
    image_column: Text
    """Column of bytes, or of structs of `bytes` and `path`, as Hugging Face writes them."""
    label_column: Text
    """May be inside structs: `meta.label`."""
    integer_labels: bool = False
    """Labels are places in the card's `labels`, counted from 0; not needed where the file names
    its classes, as Hugging Face does."""


Layout = Table | Folders | WebDataset | ParquetImages
LAYOUTS: Mapping[str, type[Layout]] = {
    "table": Table,
    "folders": Folders,
    "webdataset": WebDataset,
    "parquet": ParquetImages,
}


@typed
class Card:
    """What `dataset.yaml` says."""

    title: Text
    description: str | None = None
    licence: Text
    origin: Text
    """Where the data comes from and how it was cut."""
    task: Literal["classification"]
    labels: Annotated[tuple[str, ...], AfterValidator(_label_list)] | None = None
    """Class names by index; None: the sorted names found."""
    sources: tuple[Source, ...]
    samples: Annotated[Layout, Field(discriminator="layout")]


def load(path: Path) -> Card:
    """Read and check a card.

    Raises:
        HeadraceError: no such file, no YAML, or with every fault: key, expected, found.
    """
    fix = "datasets/README.md shows what a card holds; `dataset:` in params.yaml names its folder"
    data = read_yaml(path, fix=fix)
    lines = _faults(data)
    if lines:
        raise faulty(str(path), lines)
    return validate(Card, data, where=str(path))


def _faults(data: Mapping[str, Any]) -> list[str]:
    """All faults; those of a source or of `samples` are looked for in its own class.

    So that they name its keys.
    """
    own = ("sources:", "sources.", "samples:", "samples.")
    lines = [line for line in faults(Card, data) if not line.startswith(own)]
    return lines + _source_faults(data.get("sources")) + _sample_faults(data)


def _source_faults(sources: Any) -> list[str]:
    if not isinstance(sources, list) or not sources:
        return [f"sources: expected a list of at least one `- url: ...`, found {describe(sources)}"]
    lines: list[str] = []
    urls: dict[str, int] = {}
    for index, source in enumerate(sources):
        prefix = f"sources.{index}"
        if not isinstance(source, dict):
            lines.append(f"{prefix}: expected `url: ...`, found {describe(source)}")
            continue
        lines += faults(Source, source, prefix=f"{prefix}.")
        first = urls.setdefault(str(source.get("url")), index)
        if first != index:
            lines.append(f"{prefix}.url: the same as that of sources.{first}")
    return lines


def _number_faults(data: Mapping[str, Any]) -> list[str]:
    if data["samples"].get("integer_labels") is True and data.get("labels") is None:
        return ["samples.integer_labels: expected `labels:`, which they count, found none"]
    return []


def _sample_faults(data: Mapping[str, Any]) -> list[str]:
    samples = data.get("samples")
    if not isinstance(samples, dict):
        return [f"samples: expected a mapping with `layout:`, found {describe(samples)}"]
    layout = samples.get("layout")
    if not isinstance(layout, str) or layout not in LAYOUTS:
        near = did_you_mean(str(layout), LAYOUTS)
        found = describe(layout)
        return [f"samples.layout: expected one of {', '.join(LAYOUTS)}, found {found}.{near}"]
    return faults(LAYOUTS[layout], samples, prefix="samples.") + _number_faults(data)
