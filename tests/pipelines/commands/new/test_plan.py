import difflib
from pathlib import Path

import pytest

from pipelines.commands.new.plan import plan
from pipelines.core.errors import HeadraceError
from tests import mill

ROOT = Path(__file__).parents[4]
FILES = ("dvc.yaml", "params.yaml", ".gitignore", "pipelines/clean.py")
CLEAN, NEW = (f"datasets/${{dataset}}/{name}/manifest" for name in ("clean", "sieve"))


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with this project's own dvc.yaml, params.yaml and .gitignore."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.chdir(tmp_path)


def changes(name: str, text: str) -> tuple[list[str], list[str]]:
    """Lines that are gone, and lines that are new."""
    lines = list(difflib.ndiff(Path(name).read_text().splitlines(), text.splitlines()))
    return [line[2:] for line in lines if line[0] == "-"], [
        line[2:] for line in lines if line[0] == "+"
    ]


@pytest.mark.parametrize("after", ["clean", "shard", "decode"])
def test_a_stage_is_four_files_and_a_line_of_gitignore(after: str) -> None:
    texts = plan("sieve", after).texts
    assert [str(path) for path in texts] == [
        "pipelines/sieve.py",
        "tests/pipelines/test_sieve.py",
        ".gitignore",
        "params.yaml",
        "dvc.yaml",
    ]
    assert changes(".gitignore", texts[Path(".gitignore")]) == ([], ["/datasets/*/sieve"])
    gone, new = changes("params.yaml", texts[Path("params.yaml")])
    assert gone == []
    assert "sieve:" in new
    assert not any("$verb" in text for text in texts.values())


@pytest.mark.parametrize("after", ["shard", "decode"])
def test_beside_the_chain_dvc_yaml_only_grows(after: str) -> None:
    gone, new = changes("dvc.yaml", plan("sieve", after).texts[Path("dvc.yaml")])
    assert gone == []
    assert sum(line == "  sieve:" for line in new) == 1


def test_in_the_chain_only_the_path_of_the_reader_changes() -> None:
    gone, new = changes("dvc.yaml", plan("sieve", "clean").texts[Path("dvc.yaml")])
    assert len(gone) == 2
    assert all(CLEAN in line for line in gone)
    rewired = {line.replace(CLEAN, NEW) for line in gone}
    assert rewired < set(new)
    assert f"      python -m pipelines.sieve --manifest {CLEAN}" in new


def test_a_second_filter_joins_the_chain_behind_the_first() -> None:
    for path, text in plan("sieve", "clean").texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    made = plan("wash", "sieve")
    assert (made.shape.reads, made.shape.readers) == (NEW, ("shard",))
    dvc_yaml = made.texts[Path("dvc.yaml")]
    assert dvc_yaml.index("  clean:") < dvc_yaml.index("  sieve:") < dvc_yaml.index("  wash:")
    # Between clean and sieve, it is sieve that is handed the new manifest.
    assert plan("wash", "clean").shape.readers == ("sieve",)


@pytest.mark.parametrize(
    "verb", ["Sieve", "2nd", "si-eve", "si eve", "", "class", "sïeve", "s" * 31]
)
def test_what_cannot_name_a_module_is_refused(verb: str) -> None:
    with pytest.raises(HeadraceError, match="cannot name a stage"):
        plan(verb, "clean")


@pytest.mark.parametrize(
    ("verb", "where"),
    [
        ("train", "dvc.yaml:stages.train"),
        ("seed", "params.yaml:seed"),
        ("raw", "datasets/\\${dataset}/raw"),
        ("reports", "datasets/\\${dataset}/reports"),
        ("core", "pipelines/core"),
        ("weigh", "tests/pipelines/test_weigh.py"),
    ],
)
def test_a_name_that_is_taken_is_refused_with_what_takes_it(verb: str, where: str) -> None:
    Path("pipelines/core").mkdir()
    Path("tests/pipelines").mkdir(parents=True)
    Path("tests/pipelines/test_weigh.py").touch()
    with pytest.raises(HeadraceError, match=rf"is taken(.|\n)*{where}"):
        plan(verb, "clean")


def test_a_stage_that_is_not_there_cannot_be_followed() -> None:
    with pytest.raises(HeadraceError, match="no stage 'klean'"):
        plan("sieve", "klean")


def test_a_command_that_cannot_be_rewired_is_refused() -> None:
    mill.edit("dvc.yaml", f"shard --manifest {CLEAN}", f"shard --manifest '{CLEAN}'")
    with pytest.raises(HeadraceError, match=r"dvc.yaml is written in a way"):
        plan("sieve", "clean")


def test_a_stage_without_a_section_is_followed_at_the_end_of_params_yaml() -> None:
    Path("params.yaml").write_text("dataset: fashion\nlr: 1\n")
    text = plan("sieve", "clean").texts[Path("params.yaml")]
    assert text.startswith("dataset: fashion\nlr: 1\nsieve:\n")


@pytest.mark.parametrize(("verb", "first"), [("bright", "bright"), ("dark", "core.records")])
def test_imports_of_the_test_are_in_order_whatever_the_verb(verb: str, first: str) -> None:
    text = plan(verb, "decode").texts[Path(f"tests/pipelines/test_{verb}.py")]
    assert text.index(f"from pipelines.{first} import") == text.index("from pipelines.")
