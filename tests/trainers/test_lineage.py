import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from trainers import weights
from trainers.lineage import blob_id, code, commit_of, digest_of_code, lineage

ROOT = Path(__file__).parents[2]
ABOUT = weights.About(
    model="small",
    shape=(1, 1, 1),
    labels=("a",),
    dataset_version="v",
    mean=(0.0,),
    std=(1.0,),
    params={"lr": 0.1},
    seeds={"seed": 1},
    code={"trainers/train.py": "ab"},
    environment={"threads": 1},
    chain={"digest": "cd", "num_steps": 5},
)


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A git repository with a package that imports in every way, and a module beside it."""
    files = {
        "quarry/__init__.py": "",
        "quarry/top.py": "import quarry.plain\nfrom quarry import sibling\nfrom . import relative",
        "quarry/plain.py": "import json\nimport numpy as np\nimport not_installed_anywhere\n",
        "quarry/sibling.py": "def f():\n    from quarry.late import something\n",
        "quarry/relative.py": "from .deep.leaf import value\nif False:\n    import beside\n",
        "quarry/late.py": "something = 1\n",
        "quarry/deep/__init__.py": "",
        "quarry/deep/leaf.py": "import quarry.top\nvalue = 1\n",
        "quarry/unused.py": "",
        "beside.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("quarry", "beside")]:
        del sys.modules[name]


def test_code_is_what_import_statements_reach(project: Path) -> None:
    assert set(code(["quarry.top"], project)) == {
        "beside.py",
        "quarry/__init__.py",
        "quarry/deep/__init__.py",
        "quarry/deep/leaf.py",
        "quarry/late.py",
        "quarry/plain.py",
        "quarry/relative.py",
        "quarry/sibling.py",
        "quarry/top.py",
    }


def test_code_is_named_by_what_git_calls_its_content(project: Path) -> None:
    found = code(["quarry.top"], project)
    assert found["quarry/top.py"] == git(project, "rev-parse", "HEAD:quarry/top.py")
    assert blob_id(project / "beside.py") == git(project, "hash-object", "beside.py")


def test_code_outside_the_project_goes_by_its_module(project: Path, tmp_path: Path) -> None:
    found = code(["quarry.top"], tmp_path / "elsewhere")
    assert "module:quarry.top" in found


def test_the_trainer_consists_of_what_it_imports() -> None:
    found = code(["trainers.train"])
    assert {"trainers/train.py", "trainers/models/small.py", "trainers/reader/order.py"} <= set(
        found
    )
    assert "pipelines/core/params.py" in found
    assert not [name for name in found if "site-packages" in name or name.startswith("module:")]
    assert "trainers/evaluate.py" not in found


def test_the_commit_of_code_is_found(project: Path) -> None:
    first = git(project, "rev-parse", "HEAD")
    (project / "README").write_text("not code")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "two")
    assert commit_of(code(["quarry.top"], project), project) == first


def test_code_that_is_committed_after_the_run_is_found_by_its_content(project: Path) -> None:
    (project / "beside.py").write_text("edited = 1\n")
    ran = code(["quarry.top"], project)
    assert commit_of(ran, project) is None
    git(project, "commit", "-q", "-a", "-m", "the edit, after the run")
    committed = git(project, "rev-parse", "HEAD")
    (project / "quarry" / "top.py").write_text("")
    git(project, "commit", "-q", "-a", "-m", "later")
    assert commit_of(ran, project) == committed


def test_without_a_repository_there_is_no_commit(project: Path) -> None:
    ran = code(["quarry.top"], project)
    shutil.rmtree(project / ".git")
    assert commit_of(ran, project) is None


def test_without_git_there_is_no_commit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert commit_of(code(["quarry.top"], project), project) is None


def test_code_without_a_file_in_the_project_has_no_commit(project: Path) -> None:
    assert commit_of({"module:net": "ab"}, project) is None


def test_a_record_leads_back_from_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"w": torch.arange(3.0), "b": torch.zeros(2)}
    weights.write(path, tensors, ABOUT)
    record = lineage(ABOUT, path)
    assert record.pop("format") == 1
    assert record == {
        "dataset_version": "v",
        "params": {"lr": 0.1},
        "seeds": {"seed": 1},
        "code": {"trainers/train.py": "ab"},
        "environment": {"threads": 1},
        "chain": {"digest": "cd", "num_steps": 5},
        "weights": {
            "file": "model.safetensors",
            "sha256": sha256(path.read_bytes()).hexdigest(),
            "tensors_sha256": weights.weights_sha256(tensors),
            "tensors": {name: weights.weights_sha256({name: tensors[name]}) for name in tensors},
        },
    }


def test_code_has_one_digest_whatever_the_order_of_its_files() -> None:
    assert digest_of_code({"a": "1", "b": "2"}) == digest_of_code({"b": "2", "a": "1"})
    assert digest_of_code({"a": "1", "b": "2"}) != digest_of_code({"a": "2", "b": "1"})
