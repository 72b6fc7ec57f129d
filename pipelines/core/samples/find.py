"""Finding the samples of a dataset: from files and a card to keys, labels and splits.

All layouts of the card are read over the virtual tree of raw/, in which an archive counts as
unpacked where it lies. Every metadata row and every file ends up once, as a sample or as a row with
a reason. No image is opened here. Holds a few hundred bytes a file in memory.
"""

from __future__ import annotations

import functools
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.core.card import Card, Folders, ParquetImages, Table, WebDataset, safe_path
from pipelines.core.errors import HeadraceError, did_you_mean
from pipelines.core.reasons import Reason
from pipelines.core.samples import metadata
from pipelines.core.samples.claims import Claim, dropped_file, settle, sound_files
from pipelines.core.samples.classes import split_named
from pipelines.core.samples.keys import key_of
from pipelines.core.samples.listing import Dropped, Listing, place
from pipelines.core.samples.metadata import Columns, Row
from pipelines.core.samples.parquet import in_parquet
from pipelines.core.samples.raw import RawFile, ReadFault, list_files, read
from pipelines.core.samples.webdataset import in_tars


def find(folder: Path, card: Card) -> Listing:
    """The samples of raw/ by the layout that the card names.

    Args:
        folder: raw/.
        card: its `samples` names the layout, its `labels` the classes, if it has any.

    Raises:
        HeadraceError: raw/ or its metadata file is missing, or cannot be read.
    """
    files = list_files(folder)
    match card.samples:
        case Table(metadata=path) as table:
            columns = Columns(table.path_column, table.label_column, table.split_column)
            read_table = functools.partial(_read_table, folder)
            return in_tables(files, path, columns, card.labels, read_table)
        case Folders():
            return in_folders(files, card.labels)
        case WebDataset() as tars:
            return in_tars(files, tars, card.labels, functools.partial(_read_member, folder))
        case ParquetImages() as images:
            return in_parquet(files, images, card.labels, folder)


def _read_member(folder: Path, file: RawFile, max_bytes: int) -> bytes:
    return read(folder, file.container, file.member, max_bytes)


def _read_table(folder: Path, file: RawFile) -> bytes:
    try:
        return read(folder, file.container, file.member, file.num_bytes)
    except ReadFault as fault:
        raise HeadraceError(
            "The metadata file cannot be read.", where=place(file), found=fault.detail
        ) from None


def in_folders(files: Sequence[RawFile], labels: Sequence[str] | None) -> Listing:
    """Samples of the layout `folders`: the class is the name of the folder that holds the file.

    The outermost folder above that one which is called like a split gives the split. Where any file
    lies in such a folder, those that do not are dropped: drawing splits for some would mix them.

    Args:
        files: the virtual tree.
        labels: the card's classes, or None to take those that are found.
    """
    claims: list[Claim] = []
    sound, dropped = sound_files(files)
    for number, file in enumerate(sound):
        *above, holder, _ = ("", *file.path.split("/"))
        splits = [folder for folder in above if split_named(folder)]
        if not holder or (not splits and split_named(holder)):
            dropped.append(dropped_file(file, Reason.NO_LABEL, "the file lies in no class folder"))
        else:
            claims.append(Claim(file, holder, splits[0] if splits else "", ("", number)))
    return settle(claims, dropped, labels, needs_split=any(claim.split for claim in claims))


def in_tables(
    files: Sequence[RawFile],
    path: str,
    columns: Columns,
    labels: Sequence[str] | None,
    read: Callable[[RawFile], bytes],
) -> Listing:
    """Samples of the layout `table`: a metadata file names paths, labels and perhaps splits.

    Where several archives hold a metadata file at `path`, all are read.

    Args:
        files: the virtual tree.
        path: of the metadata file in it.
        columns: the metadata's columns that count.
        labels: the card's classes, or None to take those that are found.
        read: gives the bytes of a metadata file.

    Raises:
        HeadraceError: there is no such metadata file, or it cannot be read as one.
    """
    sound, dropped = sound_files(files)
    by_path = _by_path(sound)
    tables = by_path.get(_normal(path), [])
    if not tables:
        raise _no_metadata(sound, path)
    claims: list[Claim] = []
    listed = set(tables)
    for table in tables:
        for row in metadata.read(read(table), place(table), columns):
            candidates, found = _resolve(row, table, by_path)
            listed.update(candidates)
            if isinstance(found, Dropped):
                dropped.append(found)
            else:
                claims.append(Claim(found, row.label, row.split, (place(table), row.number)))
    detail = f"no row of {path} names it"
    unlisted = (file for file in sound if file not in listed)
    dropped += [dropped_file(file, Reason.NOT_LISTED, detail) for file in unlisted]
    return settle(claims, dropped, labels, needs_split=False)


def _by_path(files: Sequence[RawFile]) -> dict[str, list[RawFile]]:
    """The files at each virtual path: several where archives hold the same one."""
    found: dict[str, list[RawFile]] = defaultdict(list)
    for file in files:
        found[file.path].append(file)
    return found


def _no_metadata(files: Sequence[RawFile], path: str) -> HeadraceError:
    names = sorted({file.path for file in files if file.path.lower().endswith(metadata.ENDINGS)})
    return HeadraceError(
        "The metadata file that the card names is not in raw/.",
        where="dataset.yaml:samples.metadata",
        expected=path,
        found=", ".join(names[:10]) or f"{len(files)} files, no table among them",
        fix="name it as raw/ holds it, archives taken as unpacked." + did_you_mean(path, names),
    )


def _resolve(
    row: Row, table: RawFile, by_path: dict[str, list[RawFile]]
) -> tuple[list[RawFile], RawFile | Dropped]:
    """The files that a row may mean, and the one that it means or why there is none."""
    where = f"line {row.number} of {place(table)}"

    def drop(reason: Reason, detail: str) -> Dropped:
        return Dropped(key_of(row.path), row.path, reason, f"{where}: {detail}")

    if row.fault:  # Its path may be anything, and need not even be text.
        return [], Dropped("", where, Reason.MALFORMED_ROW, row.fault)
    paths = _safe_paths(row.path, posixpath.dirname(table.path))
    if not paths:
        return [], drop(Reason.UNSAFE_PATH, "an absolute path, or one that leaves its folder")
    candidates = next((by_path[path] for path in paths if path in by_path), [])
    if not candidates:
        return [], drop(Reason.MISSING_FILE, f"there is no file {paths[0]!r}")
    beside = [file for file in candidates if _archive(file) == _archive(table)]
    best = beside or candidates
    if len(best) > 1:
        places = ", ".join(place(file) for file in best[:3])
        return candidates, drop(Reason.AMBIGUOUS_FILE, f"{len(best)} files: {places}")
    return best, best[0]


def _archive(file: RawFile) -> str:
    return file.container if file.member else ""


def _safe_paths(path: str, folder: str) -> list[str]:
    """What a row's path may mean in the virtual tree, best first; nothing where it points out.

    Below the metadata file's folder, or below raw/; as written, or as Windows writes.
    """
    slashed = path.replace("\\", "/")
    if re.match(r"[A-Za-z]:/|[A-Za-z][A-Za-z0-9+.-]*://", slashed) or safe_path(slashed) is None:
        return []
    spellings = dict.fromkeys(_normal(spelling) for spelling in (path, slashed))
    return [_normal(posixpath.join(top, name)) for name in spellings for top in (folder, "")]


def _normal(path: str) -> str:
    # An archive made on a Mac holds decomposed characters where a table has composed ones.
    return unicodedata.normalize("NFC", posixpath.normpath(path))
