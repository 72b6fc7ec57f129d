"""The layout `webdataset`: tars whose members of one name, up to its first dot, are one sample.

`train-000.tar` with `17.jpg` and `17.cls` holds a sample of the class that `17.cls` names. Tars are
read in place. Each tar member ends up once: as an image, as what stands beside one, or as a row
with a reason. Costs a read a label.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.core.card import WebDataset
from pipelines.core.errors import HeadraceError
from pipelines.core.reasons import Reason
from pipelines.core.samples.archives import ENDINGS as ARCHIVES
from pipelines.core.samples.archives import ReadFault
from pipelines.core.samples.claims import Claim, dropped_file, settle, sound_files
from pipelines.core.samples.classes import class_numbered, is_plain, split_of_path
from pipelines.core.samples.listing import Dropped, Listing
from pipelines.core.samples.raw import RawFile

IMAGES = frozenset(
    re.findall(r"\w+", "avif bmp gif jpe jpeg jpg pbm pgm png pnm ppm tif tiff webp")
)
"""Endings, in lower case, of members that are images."""

_MAX_LABEL_BYTES = 1 << 20

Read = Callable[[RawFile, int], bytes]
"""Gives the bytes of a member up to a limit; raises ReadFault."""


def in_tars(
    files: Sequence[RawFile], layout: WebDataset, labels: Sequence[str] | None, read: Read
) -> Listing:
    """Samples of the layout `webdataset`.

    Args:
        files: the virtual tree.
        layout: what the card says.
        labels: the card's classes, or None to take those that are found.
        read: gives the bytes of a label.

    Raises:
        HeadraceError: there is no tar.
    """
    sound, dropped = sound_files(files)
    tars = [file for file in sound if file.member and file.container.lower().endswith(".tar")]
    if not tars:
        raise HeadraceError(
            "The card says that samples lie in WebDataset tars, and there is none.",
            where="dataset.yaml:samples.layout",
            expected="files in raw/ that end in .tar",
            found=", ".join(sorted({file.container for file in sound})[:5]) or "no file",
            fix="name the layout that the data has: see datasets/README.md",
        )
    inside = set(tars)
    detail = "the file is no member of a tar"
    dropped += [
        dropped_file(file, Reason.NOT_LISTED, detail) for file in sound if file not in inside
    ]
    claims: list[Claim] = []
    for number, group in enumerate(_groups(tars)):
        found = _claim(group, layout, labels, read, number)
        if isinstance(found, Claim):
            claims.append(found)
        else:
            dropped += found
    return settle(claims, dropped, labels, needs_split=any(claim.split for claim in claims))


def _groups(files: Sequence[RawFile]) -> list[list[RawFile]]:
    """The members of each name in each tar."""
    groups: dict[tuple[str, str], list[RawFile]] = defaultdict(list)
    for file in files:
        folder, name = posixpath.split(file.member)
        groups[file.container, posixpath.join(folder, name.partition(".")[0])].append(file)
    return list(groups.values())


def _ending(file: RawFile) -> str:
    return posixpath.basename(file.member).partition(".")[2].lower()


def _claim(
    group: Sequence[RawFile],
    layout: WebDataset,
    labels: Sequence[str] | None,
    read: Read,
    number: int,
) -> Claim | list[Dropped]:
    images = [file for file in group if _ending(file) in IMAGES]
    if not images:
        return [_without_image(file) for file in group]
    if len(images) > 1:
        detail = f"{len(images)} images of one name"
        return [dropped_file(file, Reason.AMBIGUOUS_FILE, detail) for file in images]
    image = images[0]
    tellers = [file for file in group if _ending(file) == layout.label_ending]
    if len(tellers) != 1:
        detail = f"{len(tellers)} members .{layout.label_ending} of its name"
        return [dropped_file(image, Reason.NO_LABEL, detail)]
    try:
        label = _label(read(tellers[0], _MAX_LABEL_BYTES), layout)
    except (ReadFault, ValueError, RecursionError) as error:
        detail = f"{tellers[0].member}: {getattr(error, 'detail', error)}"
        return [dropped_file(image, Reason.MALFORMED_ROW, detail)]
    if layout.integer_labels:
        label = class_numbered(label, labels)
    return Claim(image, label, split_of_path(image.container), (image.container, number))


def _without_image(file: RawFile) -> Dropped:
    if file.member.lower().endswith(ARCHIVES):
        detail = "an archive inside an archive is not opened"
        return dropped_file(file, Reason.UNSUPPORTED_FORMAT, detail)
    return dropped_file(file, Reason.MISSING_FILE, "no image has its name")


def _label(data: bytes, layout: WebDataset) -> str:
    """The label that a member tells; empty where it tells none.

    Raises:
        ValueError: it is not UTF-8, no JSON, or the label is no single line of text or number.
    """
    text = data.decode("utf-8-sig")
    if layout.label_ending == "json":
        value: Any = json.loads(text)
        for name in (layout.label_field or "label").split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
            raise ValueError("the label is neither text nor a whole number")
        text = "" if value is None else str(value)
    label = text.strip()
    if not is_plain(label):
        raise ValueError("the label holds control characters, or more than a line")
    return label
