"""requirements.lock names everything that is installed, exactly, and nothing about where from."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LINES = Path("requirements.lock").read_text().splitlines()
LOCKED = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in LINES}


def direct_requirements() -> list[Requirement]:
    pyproject = tomllib.loads(Path("pyproject.toml").read_text())
    texts = pyproject["project"]["dependencies"] + pyproject["dependency-groups"]["dev"]
    return [Requirement(text) for text in texts]


def needed(name: str, extras: frozenset[str]) -> list[Requirement]:
    """What an installed package needs on this machine, with the extras that were asked for."""
    texts = importlib.metadata.requires(name) or []
    environments = [{"extra": extra} for extra in ("", *sorted(extras))]
    return [
        requirement
        for requirement in map(Requirement, texts)
        if requirement.marker is None
        or any(requirement.marker.evaluate(environment) for environment in environments)
    ]


def pinned_by_torch() -> set[str]:
    """The CUDA libraries that a CUDA build of torch brings along; torch pins them itself."""
    return {
        canonicalize_name(requirement.name)
        for requirement in needed("torch", frozenset())
        if requirement.name.startswith(("nvidia-", "cuda-", "triton"))
    }


def test_every_line_is_a_name_and_an_exact_version() -> None:
    wrong = [
        line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)
    ]
    assert wrong == []


def test_no_package_stands_twice() -> None:
    assert len(LOCKED) == len(LINES)


def test_kernels_and_decoders_are_the_ones_that_results_depend_on() -> None:
    assert LOCKED[canonicalize_name("torch")] == "2.13.0"
    assert LOCKED[canonicalize_name("nvidia-dali-cuda130")] == "2.4.0"


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_direct_requirement_is_locked_at_a_version_that_it_allows(requirement: Requirement) -> None:
    assert requirement.specifier.contains(LOCKED[canonicalize_name(requirement.name)])


def test_everything_that_a_package_needs_is_locked_too() -> None:
    missing = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [(r.name, frozenset(r.extras)) for r in direct_requirements()]
    while queue:
        name, extras = queue.pop()
        if (name, extras) in seen or canonicalize_name(name) in pinned_by_torch():
            continue
        seen.add((name, extras))
        if canonicalize_name(name) not in LOCKED:
            missing.add(name)
        else:
            queue += [(r.name, frozenset(r.extras)) for r in needed(name, extras)]
    assert missing == set()


def test_installed_versions_are_the_locked_ones() -> None:
    wrong = {
        name: installed
        for name, version in LOCKED.items()
        # A local version such as torch's +cpu is the same release, built otherwise.
        if (installed := importlib.metadata.version(name)).partition("+")[0] != version
    }
    assert wrong == {}
