import importlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from trainers import weights
from trainers.lineage import Chain, blob_id, code, commit_of, lineage

ROOT = Path(__file__).parents[2]


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


def fed(*steps: tuple[int, list[int], float]) -> Chain:
    chain = Chain()
    for step, ids, loss in steps:
        chain.add(step, np.array(ids, np.int64), struct.pack("<d", loss))
    return chain


STEPS: tuple[tuple[int, list[int], float], ...] = (
    (0, [3, 1, 2], 0.5),
    (1, [9], 0.25),
    (2, [], -0.0),
)


def test_the_chain_is_the_documented_one() -> None:
    link = sha256(b"headrace chain 1").digest()
    assert Chain().digest == link.hex()
    body = struct.pack("<qq3q", 0, 3, 3, 1, 2) + struct.pack("<d", 0.5)
    assert fed(STEPS[0]).digest == sha256(link + body).hexdigest()


def test_any_difference_breaks_the_chain() -> None:
    variants = [
        STEPS,
        STEPS[:2],
        (STEPS[1], STEPS[0], STEPS[2]),
        ((0, [3, 2, 1], 0.5), *STEPS[1:]),
        ((7, [3, 1, 2], 0.5), *STEPS[1:]),
        ((0, [3, 1, 2], 0.5000000000000001), *STEPS[1:]),
        (*STEPS[:2], (2, [], 0.0)),
        ((0, [3, 1], 0.5), *STEPS[1:]),
    ]
    assert len({fed(*variant).digest for variant in variants}) == len(variants)


def test_a_chain_goes_on_from_its_state_through_json() -> None:
    chain = Chain.from_state(json.loads(json.dumps(fed(*STEPS[:2]).state())))
    chain.add(2, np.array([], np.int64), struct.pack("<d", -0.0))
    assert chain.state() == fed(*STEPS).state()
    assert chain.num_steps == 3


def test_bits_of_a_loss_may_be_an_integer() -> None:
    bits = struct.unpack("<q", struct.pack("<d", -0.5))[0]
    chain = Chain()
    chain.add(0, np.array([1]), bits)
    assert chain.digest == fed((0, [1], -0.5)).digest


def test_ids_of_another_width_are_a_mistake() -> None:
    with pytest.raises(TypeError, match="int64"):
        Chain().add(0, np.array([1], np.int32), b"")


def test_a_record_leads_back_from_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"w": torch.arange(3.0)}
    about = weights.About("small", (1, 1, 1), ("a",), "v", (0.0,), (1.0,), {})
    weights.write(path, tensors, about)
    record = lineage(
        dataset_version="v",
        params={"lr": 0.1},
        seeds={"seed": 1},
        code={"trainers/train.py": "ab"},
        chain=fed(*STEPS),
        weights=path,
    )
    assert record["dataset_version"] == "v"
    assert record["params"] == {"lr": 0.1}
    assert record["seeds"] == {"seed": 1}
    assert record["code"] == {"trainers/train.py": "ab"}
    assert record["chain"]["digest"] == fed(*STEPS).digest
    assert record["environment"]["packages"]["torch"].startswith("2.")
    assert record["weights"] == {
        "file": "model.safetensors",
        "sha256": sha256(path.read_bytes()).hexdigest(),
        "tensors_sha256": weights.weights_sha256(tensors),
    }
    assert str(tmp_path) not in json.dumps(record)
