"""What may be put after which stage, and what it then reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from pipelines.core.errors import HeadraceError
from pipelines.core.project import Project, Stage


@dataclass(frozen=True)
class Shape:
    """A kind of new stage.

    Attributes:
        template: folder of its files in `templates/`.
        desc: its line in dvc.yaml.
        argument: the name of its input.
        reads: the path of its input.
        readers: stages that read this path so far, and from now on what the new stage makes of it.
    """

    template: str
    desc: str
    argument: str
    reads: str
    readers: tuple[str, ...] = ()


def shape_after(project: Project, after: str) -> Shape:
    """What a stage after the stage `after` looks like.

    Raises:
        HeadraceError: there is no such stage, or nothing can follow it.
    """
    stage = project.stage(after)
    shape = _shape(project, stage)
    if shape is None:
        names = [stage.name for stage in project.stages if _shape(project, stage)]
        raise HeadraceError(
            f"There is no pattern for a stage after {after}.",
            expected="a stage that writes a manifest or shards: "
            + (", ".join(names) or "none here"),
            found=f"{after} ({stage.module})",
            fix="name one of these, or write the stage by hand: pipelines/clean.py is an example",
        )
    return shape


def out_of(stage: Stage) -> str:
    """The folder that a stage writes."""
    return stage.arguments["out"]


def _shape(project: Project, stage: Stage) -> Shape | None:
    if "out" not in stage.arguments:
        return None
    out = out_of(stage)
    manifest = f"{out}/manifest"
    readers = tuple(
        other.name for other in project.stages if manifest in (*other.reads.values(), *other.deps)
    )
    if readers:
        desc = "Drop images that are blurred."
        return Shape("manifest", desc, "manifest", manifest, readers)
    match stage.module:
        case "pipelines.shard":
            desc = "Tell how many bits a pixel each image takes, and which are compressed hard."
            return Shape("shard", desc, "shards", out)
        case "pipelines.decode":
            return Shape(
                "decode", "Tell how bright each image is, and which are dark.", "decoded", out
            )
        case _:
            return None


def sibling(path: str, name: str) -> str:
    """The path of `name` in the same folder."""
    return str(PurePosixPath(path).with_name(name))
