import pytest

from pipelines.commands.check import settings, tree
from pipelines.commands.check.finding import Finding
from tests import mill


def findings() -> list[Finding]:
    return sorted(settings.findings(tree.read()))


def found() -> list[str]:
    return [f"{finding.where} {finding.kind}" for finding in findings()]


def test_where_all_agree_nothing_is_found() -> None:
    assert findings() == []


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("params.yaml", "  mesh:", "  mash: 1\n  mesh:", ["params.yaml:sift.mash untyped-param"]),
        ("params.yaml", "  mesh:", "  #", ["params.yaml:sift.mesh missing-param"]),
        ("params.yaml", "seed: 1", "", ["params.yaml:seed missing-param"]),
        ("params.yaml", "lot: rye", "", ["params.yaml:lot missing-param"]),
        ("params.yaml", "lot: rye", "lot:", ["params.yaml:lot wrong-param"]),
        ("params.yaml", "lot: rye", "lot: 7", ["params.yaml:lot wrong-param"]),
        ("params.yaml", "lot: rye", "lot: ../rye", ["params.yaml:lot wrong-param"]),
        ("params.yaml", "lot: rye", "lot: rye; reboot", ["params.yaml:lot wrong-param"]),
        ("params.yaml", "200", "fast", ["params.yaml:grind.size_um wrong-param"]),
        ("params.yaml", "200", "-1", ["params.yaml:grind.size_um wrong-param"]),
        ("params.yaml", "  mesh: fine", "  - 1", ["params.yaml:sift wrong-param"]),
        (
            "params.yaml",
            "  size_um: 200",
            "  size_um: 200\n  seed: 2",
            ["params.yaml:grind.seed wrong-param"],
        ),
        ("params.yaml", "seed: 1", "seed: 1\nlr: 2", ["params.yaml:lr unused-param"]),
        ("dvc.yaml", "      - seed\n", "", ["dvc.yaml:stages.grind.params untracked-param"]),
        ("dvc.yaml", "      - sift\n", "", ["dvc.yaml:stages.sift.params untracked-param"]),
        (
            "dvc.yaml",
            "      - sift\n",
            "      - sift\n      - grind\n",
            ["dvc.yaml:stages.sift.params needless-param"],
        ),
        ("mill/sift.py", "job.params.mesh", "1", ["params.yaml:sift.mesh unused-param"]),
        ("mill/grind.py", "job.params.seed", "1", ["params.yaml:seed unused-param"]),
        ("mill/sift.py", "class Params", "class Settings", ["mill/sift.py broken-module"]),
        ("mill/sift.py", "def run", "def walk", ["mill/sift.py broken-module"]),
        ("mill/sift.py", "def run", "1 / 0\n\n\ndef run", ["mill/sift.py broken-module"]),
    ],
)
def test_what_is_out_of_step_is_named(file: str, old: str, new: str, expected: list[str]) -> None:
    mill.edit(file, old, new)
    assert found() == expected


def test_all_faults_come_at_once() -> None:
    mill.edit("params.yaml", "200", "fast")
    mill.edit("params.yaml", "mesh", "mash")
    mill.edit("dvc.yaml", "      - seed\n", "")
    assert found() == [
        "dvc.yaml:stages.grind.params untracked-param",
        "params.yaml:grind.size_um wrong-param",
        "params.yaml:sift.mash untyped-param",
        "params.yaml:sift.mesh missing-param",
    ]


def test_a_finding_says_what_was_expected_and_found_and_what_to_do() -> None:
    mill.edit("params.yaml", "200", "fast")
    mill.edit("params.yaml", "  mesh", "  meshes")
    size, mesh, meshes = map(str, findings())
    assert size == (
        "params.yaml:grind.size_um: wrong-param: expected a valid integer; found 'fast' (text);"
        " to mend it, correct the value"
    )
    assert mesh == (
        "params.yaml:sift.mesh: missing-param: expected a value (str); found no such key;"
        " to mend it, add the key with a value"
    )
    assert meshes == (
        "params.yaml:sift.meshes: untyped-param: expected a field of mill/sift.py:Params;"
        " found no such field (did you mean 'mesh'?);"
        " to mend it, remove the key, or add the field to mill/sift.py:Params"
    )


def test_a_key_may_be_tracked_alone_or_with_its_section() -> None:
    mill.edit("dvc.yaml", "      - sift\n", "      - sift.mesh\n")
    assert found() == []


def test_a_value_that_only_its_own_check_reads_is_unused() -> None:
    mill.edit("mill/sift.py", "job.params.mesh", "1")
    mill.edit(
        "mill/sift.py",
        "    mesh: str\n",
        "    mesh: str\n\n    def __post_init__(self):\n        assert self.mesh\n",
    )
    assert found() == ["params.yaml:sift.mesh unused-param"]


def test_a_value_is_used_where_an_imported_module_reads_it() -> None:
    mill.edit("mill/grind.py", "job.params.size_um", "job.params")
    assert found() == ["params.yaml:grind.size_um unused-param"]
    mill.edit("mill/stones.py", "return size_um", "return size_um.size_um")
    assert found() == []


def test_fields_of_a_nested_dataclass_must_be_read_too() -> None:
    mill.edit(
        "mill/sift.py",
        "@params\nclass Params:\n    mesh: str",
        "@params\nclass Mesh:\n    fine: int\n    wide: int\n\n\n"
        "@params\nclass Params:\n    mesh: Mesh",
    )
    mill.edit("params.yaml", "mesh: fine", "mesh: {fine: 1, wide: 2}")
    mill.edit("mill/sift.py", "job.params.mesh", "job.params.mesh.fine")
    assert found() == ["params.yaml:sift.mesh.wide unused-param"]
