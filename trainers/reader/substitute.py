"""Another sample in place of a damaged one: always the same, and nothing else changes.

Which one is a function of the dataset version, the split and the sample alone, so that every rank,
epoch and resumed run takes the same; the number of steps, the order and all other samples stay as
they are. The first choices are of the same shard, which is there already; shards are random draws
of the data.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from trainers.reader.index import SplitIndex
from trainers.reader.permutation import permute, round_keys

_METHOD = "headrace substitute 1"
_NUM_OF_SHARD = 8
_NUM_OF_SPLIT = 8


class Substitution(NamedTuple):
    """What a damaged sample was replaced by."""

    sample: int
    """Its id."""
    key: str
    substitute: int
    """Id of the sample whose image and label stand in its place."""
    substitute_key: str
    where: str
    """File and row of the damage."""


Report = Callable[[Substitution], None]
"""Told of each damaged sample before it is replaced; once or more, from any thread."""


def candidates(version: str, split: SplitIndex, sample: int) -> Iterator[int]:
    """Ids to try in place of `sample`, in this order; the first that is sound is taken."""
    number = split.shard_of(sample)
    parts = (
        (int(split.first_ids[number]), int(split.num_rows[number]), _NUM_OF_SHARD),
        (0, split.num_samples, _NUM_OF_SPLIT),
    )
    for first, size, num_candidates in parts:
        for attempt in range(num_candidates):
            key = round_keys(_METHOD, version, split.split, size, attempt)
            found = first + int(permute(np.array([sample - first]), size, key)[0])
            if found != sample:
                yield found
