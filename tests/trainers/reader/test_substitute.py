import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoded import write_decoded
from trainers.reader.index import SplitIndex, open_index
from trainers.reader.substitute import candidates

ROWS = [30, 1, 12, 50]


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> SplitIndex:
    folder = write_decoded(
        tmp_path_factory.mktemp("decoded"), splits={"train": ROWS}, shape=(2, 2, 1)
    )
    return open_index(folder).split("train")


@given(sample=st.integers(0, sum(ROWS) - 1), version=st.text("0123456789abcdef", max_size=3))
def test_candidates_are_always_the_same_others_of_the_split(
    split: SplitIndex, sample: int, version: str
) -> None:
    found = list(candidates(version, split, sample))
    assert found == list(candidates(version, split, sample))
    assert found
    assert sample not in found
    assert all(0 <= other < sum(ROWS) for other in found)


def test_the_first_candidates_are_of_the_same_shard(split: SplitIndex) -> None:
    for sample in range(31, 43):
        first = itertools.islice(candidates("v", split, sample), 5)
        assert {split.shard_of(other) for other in first} == {2}


def test_the_only_sample_of_a_shard_gets_one_of_another(split: SplitIndex) -> None:
    assert {split.shard_of(other) for other in candidates("v", split, 30)} <= {0, 2, 3}


def test_another_version_gives_others(split: SplitIndex) -> None:
    first = [next(candidates("v", split, sample)) for sample in range(43, 93)]
    other = [next(candidates("w", split, sample)) for sample in range(43, 93)]
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 10


def test_substitutes_are_spread_over_the_shard(tmp_path: Path) -> None:
    folder = write_decoded(tmp_path, splits={"train": [400]}, shape=(1, 1, 1))
    split = open_index(folder).split("train")
    found = np.array([next(candidates("v", split, sample)) for sample in range(400)])
    assert len(np.unique(found)) > 390  # a permutation, but for those that it leaves in place
