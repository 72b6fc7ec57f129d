"""Which file of which source goes to which place below raw/.

Nothing is read here but listings. Whatever could not be brought whole is refused before a byte is:
local sources that DVC does not watch, names that lead out of raw/, two files in one place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.core.card import Source, safe_path
from pipelines.core.errors import HeadraceError
from pipelines.core.sources.fetch import Item, compressed_tar
from pipelines.core.sources.files import SourceFile, list_source
from pipelines.core.sources.remote import Patience, is_remote, last_part, local_path
from pipelines.core.storage import sha256_file


@dataclass(frozen=True)
class Plan:
    """A source and the files that it consists of."""

    source: Source
    items: tuple[Item, ...]

    @property
    def is_file(self) -> bool:
        """Whether the source is one file, rather than a folder."""
        return not self.items[0].file.relative


def check_watched(source: Source, where: str, watched: Path, folder: Path) -> None:
    """Refuse a local source whose changes neither DVC nor a checksum would tell.

    Args:
        source: any source; remote ones pass.
        where: its place in the card, for the message.
        watched: the folder that is a dep of the stage.
        folder: the card's.

    Raises:
        HeadraceError: with the lines that mend it.
    """
    if source.sha256 or is_remote(source.url):
        return
    here = local_path(source.url, folder)
    if not here.exists():
        return
    if here.resolve().is_relative_to(watched.resolve()):
        _check_links(here, watched)
        return
    fix = f"move it into {watched}/ or make that a link to it, and name it so in the card"
    if here.is_file():
        fix += f"; or add to the source in the card:  sha256: {sha256_file(here)}"
    raise HeadraceError(
        "DVC does not see this local source, so that changes would go unnoticed.",
        where=where,
        found=source.url,
        expected=f"a path in {watched}/, or a sha256",
        fix=fix,
    )


def _check_links(here: Path, watched: Path) -> None:
    """Refuse links to folders elsewhere: DVC hashes what a link to a file leads to, but no folder.

    Raises:
        HeadraceError: naming the first one.
    """
    root = watched.resolve()
    for folder, folders, _ in os.walk(here):
        links = [path for name in sorted(folders) if (path := Path(folder, name)).is_symlink()]
        far = next((path for path in links if not path.resolve().is_relative_to(root)), None)
        if far is not None:
            raise HeadraceError(
                "DVC does not follow this link to a folder: changes behind it would go unnoticed.",
                where=str(far),
                expected=f"folders and files in {watched}/, or a sha256 of the source in the card",
                found=f"a link to {far.resolve()}",
                fix=f"put the folder itself there, or make {watched} as a whole the link",
            )


def plan(source: Source, *, folder: Path, patience: Patience) -> Plan:
    """List a source and find a place for each of its files.

    Raises:
        HeadraceError: it cannot be listed, or a name of it cannot be used.
    """
    files = list_source(source.url, folder, patience)
    return Plan(source, tuple(_item(source, file) for file in files))


def _item(source: Source, file: SourceFile) -> Item:
    if file.relative:
        to = "/".join(filter(None, (source.to, file.relative)))
    else:
        to = source.to or last_part(source.url)
    safe = safe_path(to)
    if safe is None:
        raise HeadraceError(
            "A file of a source has a name that leads out of raw/, or none.",
            where=file.place,
            found=repr(to),
            fix="give the source a `to` in the card, or rename the file",
        )
    ending = compressed_tar(safe) or compressed_tar(last_part(file.place))
    if compressed_tar(safe):
        safe = safe[: -len(ending)] + ".tar"
    return Item(file, safe, None if file.relative else source.sha256, ending)


def check_places(plans: Sequence[Plan]) -> None:
    """Refuse two files in one place, and a file where another needs a folder.

    Raises:
        HeadraceError: naming both.
    """
    taken: dict[str, Item] = {}
    items = sorted((item for plan in plans for item in plan.items), key=lambda item: item.to)
    for item in items:
        above = [parent.as_posix() for parent in Path(item.to).parents]
        other = next((taken[place] for place in (item.to, *above) if place in taken), None)
        if other is not None:
            raise HeadraceError(
                "Two files of the sources would lie in one place of raw/.",
                where=f"raw/{other.to}",
                found=f"{other.file.place} and {item.file.place}",
                fix="give one of the sources another `to` in the card",
            )
        taken[item.to] = item


def check_same(before: Plan, after: Plan) -> None:
    """Compare two listings of a source, from before and after it was read.

    Raises:
        HeadraceError: it changed; names the first file that differs.
    """
    if before == after:
        return
    odd = {item.file for item in before.items} ^ {item.file for item in after.items}
    raise HeadraceError(
        "The source changed while it was read.",
        where=min(file.place for file in odd),
        fix="run the command again once it is at rest",
    )
