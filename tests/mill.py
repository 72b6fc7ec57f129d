"""A project of two small stages in which everything is in step, for `check` to find otherwise.

Its package is `mill`, so that it can be imported beside the real `pipelines`.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILES = {
    "mill/__init__.py": '"""A mill."""\n',
    "mill/stones.py": """\
SPEED = 3


def grind(size_um, seed):
    return size_um * seed * SPEED
""",
    "mill/grind.py": """\
from typing import Annotated

from pydantic import Field

from mill.stones import grind
from pipelines.core import stage
from pipelines.core.params import TOP_LEVEL, params


@params
class Params:
    size_um: Annotated[int, Field(gt=0)]
    seed: Annotated[int, TOP_LEVEL]


def run(job):
    return {"ground": grind(job.params.size_um, job.params.seed)}


if __name__ == "__main__":
    stage.main("mill.grind")
""",
    "mill/sift.py": """\
from pipelines.core import stage
from pipelines.core.params import params


@params
class Params:
    mesh: str


def run(job):
    return {"mesh": job.params.mesh}


if __name__ == "__main__":
    stage.main("mill.sift")
""",
    "tests/mill/test_grind.py": "",
    "tests/mill/test_sift.py": "",
    "grain/rye/card.yaml": "title: Rye\n",
    "requirements.lock": "ruamel.yaml==0.19.1\n",
    "params.yaml": """\
lot: rye
seed: 1
grind:
  size_um: 200
sift:
  mesh: fine
""",
    "dvc.yaml": """\
stages:
  grind:
    cmd: >-
      python -m mill.grind --card grain/${lot}/card.yaml
      --out grain/${lot}/flour --report grain/${lot}/grind.json
    deps:
      - mill/grind.py
      - mill/stones.py
      - requirements.lock
      - grain/${lot}/card.yaml
    params:
      - seed
      - grind
    outs:
      - grain/${lot}/flour
    metrics:
      - grain/${lot}/grind.json:
          cache: false
  sift:
    cmd: python -m mill.sift --flour grain/${lot}/flour/fine --out grain/${lot}/sifted
    deps:
      - mill/sift.py
      - requirements.lock
      - grain/${lot}/flour
    params:
      - sift
    outs:
      - grain/${lot}/sifted
""",
    ".gitignore": """\
/grain/*/flour
/grain/*/sifted
__pycache__/
.tmp-*
.lock-*
/.state/
/.memo/
/cluster.yaml
""",
    ".dvcignore": """\
__pycache__/
.tmp-*
.lock-*
.state/
.memo/
""",
}


def write(folder: Path) -> None:
    """Write the project into `folder`, a new git repository."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", folder], check=True)


def edit(name: str, old: str, new: str) -> None:
    """Replace text in a file of the project in the current folder; it must be there, once."""
    text = Path(name).read_text()
    assert text.count(old) == 1, (name, old)
    Path(name).write_text(text.replace(old, new))


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the packages in `folder` be imported, and forget them afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    # The size and time of a source that a test changes may stay the same.
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = kept
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "mill":
                del sys.modules[name]
