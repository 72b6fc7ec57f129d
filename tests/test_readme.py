"""The README's commands, tables and examples are the real ones."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from torch import nn

from pipelines.core import card, project
from pipelines.core.cluster import machine
from pipelines.core.reasons import Reason
from tests.project import ROOT, commit, copy_of, run, stages_run

README = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, without what indents them in a list."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", README, re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def commands() -> list[str]:
    """Every line of every shell block, without its comment."""
    lines = "".join(blocks("sh")).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line.strip()]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that has `heading` in its first row, without that."""
    table = README[README.index(f"| {heading} |") :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_it_is_read_in_a_few_minutes() -> None:
    assert len(README.splitlines()) < 200


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.findall(r"@[A-Z]+|TODO|TBD|XXX", README)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", README))))
def test_a_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_everything_in_the_tree_is_there() -> None:
    tree = README.partition("## The tree")[2].split("```")[1].splitlines()
    above: list[str] = []
    missing = []
    for line in filter(None, tree):
        # Names stand before the explanation, two blanks away from it.
        names = re.split(r"\s{2,}", line.strip())[0].split()
        del above[(len(line) - len(line.lstrip())) // 2 :]
        folder = "".join(above)
        missing += [folder + name for name in names if not (ROOT / folder / name).exists()]
        above.append(names[0])
    data = (
        f"datasets/fashion/{name}/" for name in ("raw", "clean", "shards", "decoded", "reports")
    )
    assert set(missing) <= {"runs/", *data}


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)", README))))
def test_a_target_of_make_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_table_of_stages_is_dvc_yaml() -> None:
    prefix = "datasets/${dataset}/"
    told = {row[0]: row for row in rows("stage")}
    stages = {stage.name: stage for stage in project.read(ROOT / "dvc.yaml").stages}
    assert list(told) == list(stages)
    for name, stage in stages.items():
        _, reads, writes, _, params = told[name]
        data = [path for path in stage.deps if path.startswith((prefix, "runs/"))]
        outs = [path.removeprefix(prefix) for path in stage.writes]
        assert set(reads.split(", ")) == {path.removeprefix(prefix) for path in data}
        for out in outs:
            assert any(Path(out).is_relative_to(path) for path in writes.split(", ")), out
        for path in writes.split(", "):
            assert any(Path(out).is_relative_to(path) for out in outs), path
        assert set(params.split(", ")) == set(stage.params)


def test_every_reason_is_named_in_its_order() -> None:
    paragraph = README[README.index("Reasons, in the order") :].partition("\n\n")[0]
    assert re.findall(r"`([a-z_]+)`", paragraph) == [reason.value for reason in Reason]


def test_the_card_of_the_example_is_valid(tmp_path: Path) -> None:
    folder = tmp_path / "cats"
    (folder / "source").mkdir(parents=True)
    (text,) = blocks("yaml")
    (folder / "dataset.yaml").write_text(text)
    read = card.load(folder / "dataset.yaml")
    assert read.samples.layout == "folders"
    assert [source.url for source in read.sources] == ["source"]


def test_the_params_that_it_names_exist() -> None:
    params: dict[str, Any] = YAML(typ="safe").load(ROOT / "params.yaml")
    stages = "|".join(stage.name for stage in project.read(ROOT / "dvc.yaml").stages)
    for section, key in re.findall(rf"`({stages})\.([a-z_]+)[`:]", README):
        assert key in params[section], f"{section}.{key}"


def test_the_variables_of_the_machine_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = dict(re.findall(r"(HEADRACE_[A-Z_]+)=(\S+)", README))
    assert len(told) == 3
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    here = machine(tmp_path / "none.yaml")
    assert (here.cluster, here.num_workers, here.num_ranks) == ("processes", 2, 2)


def test_the_example_of_a_model_gives_a_score_a_class() -> None:
    (code,) = blocks("python")
    names: dict[str, Any] = {}
    exec(code, names)
    model: nn.Module = names["linear"]((4, 5, 3), 7)
    assert model(torch.zeros(2, 3, 4, 5)).shape == (2, 7)


def test_the_commands_run_in_their_order(built: Path, tmp_path: Path) -> None:
    here, elsewhere, store = (tmp_path / name for name in ("here", "elsewhere", "store"))
    copy_of(built, here)
    commit(here, "built")
    for command in commands():
        folder = here
        if command.startswith("make "):  # tests/test_make.py is about those.
            continue
        if command.startswith("dvc remote"):
            run(here, "git", "restore", "params.yaml", "dvc.lock")
            run(here, "dvc", "checkout")
        if command.startswith("dvc pull"):
            run(tmp_path, "git", "clone", "-q", str(here), str(elsewhere))
            folder = elsewhere
        line = command.replace("/mnt/headrace", str(store)).replace("NAME", "fashion")
        run(folder, "bash", "-ec", line)
    assert any(store.rglob("*.dir"))
    assert stages_run(run(elsewhere, "dvc", "repro").stdout) == []


def test_the_example_of_a_model_is_trained(built: Path, tmp_path: Path) -> None:
    here = copy_of(built, tmp_path / "here")
    commit(here, "built")
    (code,) = blocks("python")
    (here / "trainers" / "models" / "mine.py").write_text(code)
    (command,) = re.findall("`(dvc exp run -S train.model=[^`]+)`", README)
    assert stages_run(run(here, *command.split()).stdout) == ["train", "evaluate"]
