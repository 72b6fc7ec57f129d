"""Stage explain: one page about a dataset, to look at before anything is trained on it.

`report.html` stands by itself: counts, every reason with pictures of what was rejected for it,
near-duplicates and the pairs of them that leak, the balance of the classes, sizes and looks of the
images, and how far val and test are from train. It opens without a network, holds at most a few MB
whatever the size of the dataset, and has no script.

Costs reading the manifest's columns (some 5 s for a million samples), and a few dozen files of raw/
for the pictures. Memory: some 40 bytes a kept sample.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipelines.core import card, stage
from pipelines.core.page import alike, facts, render
from pipelines.core.page.facts import Example, Folders
from pipelines.core.page.thumbnails import thumbnail
from pipelines.core.params import params
from pipelines.core.report import Report
from pipelines.core.storage import sha256_file


@params
class Params:
    """Parameters of `explain`."""

    num_pictures: Annotated[int, Field(ge=0, le=50)]
    """Of each reason for which samples were rejected, of clusters of near-duplicates, and of pairs
    that leak; all others are counted."""
    picture_px: Annotated[int, Field(ge=16, le=256)]
    """Longer side of a picture; smaller images keep their size."""


def run(job: stage.Job[Params]) -> Report:
    """Read what the other stages wrote, and draw the page."""
    folders = Folders(**{name: job.inputs[name] for name in Folders.__dataclass_fields__})

    def picture(example: Example) -> str | None:
        if example.place is None:
            return None
        return thumbnail(folders.raw, example.place, job.params.picture_px)

    about = render.About(
        dataset=job.inputs["card"].parent.name,
        card=card.load(job.inputs["card"]),
        version=sha256_file(folders.decoded / "index.arrow"),
    )
    found = facts.read(folders, job.params.num_pictures)
    page = render.render(about, found, picture, alike.read(folders, job.params.num_pictures))
    job.out.write_text(page, encoding="utf-8")
    return {"num_bytes": len(page.encode())}


if __name__ == "__main__":
    stage.main("pipelines.explain")
