"""Clusters of near-duplicates: which samples look alike, and what becomes of them.

Samples whose perceptual hashes differ in at most `radius_bits` are linked, and what is linked,
directly or through others, is a cluster. It is named by its representative, the member that ranks
first: a given split before a drawn one, then test before val before train, then the most pixels,
the most bytes, the least content. No name depends on buckets or on the order of samples.

What holds of splits, but for policy `flag`, which changes none:

- Given splits stand. Where they put members of a cluster apart, `leaks` tells of each pair.
- All other members of a cluster have one split: the first given one in it, or else the one that is
  drawn from its least content. So drawn splits never put near-duplicates apart.
- A split depends on the members of its own cluster only. New data moves an old sample only if it
  joins that sample's cluster, and of clusters without given splits only if its content is the
  least there: of a cluster that grows from n to n + 1, with probability 1 / (n + 1) at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pipelines.core.buckets import split_of
from pipelines.core.images.features import Features
from pipelines.core.images.phash import NUM_BITS
from pipelines.core.reasons import Reason
from pipelines.core.samples.classes import SPLIT_RANK
from pipelines.core.samples.hamming import components, pairs_within
from pipelines.core.samples.listing import Sample

Policy = Literal["ignore", "flag", "keep_together", "drop"]
"""ignore: search none | flag: name clusters, change nothing | keep_together: never apart in drawn
splits | drop: so, and of each label in a cluster one sample stays."""


@dataclass(frozen=True)
class NearDuplicates:
    """What counts as a near-duplicate, and what becomes of it."""

    policy: Policy
    radius_bits: int
    """0..`hamming.MAX_RADIUS`, of 64."""


class Verdict(NamedTuple):
    """What becomes of a sample: a split, or a reason."""

    split: str
    reason: Reason | None = None
    detail: str = ""
    cluster: str = ""
    """Key of the representative; empty for a sample that is like no other."""


class Shares(NamedTuple):
    """Of drawn splits; train has the rest."""

    val: float
    test: float

    def split_of(self, sha256: str) -> str:
        """The split that is drawn for a content."""
        return split_of(sha256, val_fraction=self.val, test_fraction=self.test)


class Member(NamedTuple):
    """A sample that no other rule dropped."""

    number: int
    sample: Sample
    seen: Features
    split: str


def settle(members: Sequence[Member], rule: NearDuplicates, shares: Shares) -> dict[int, Verdict]:
    """The verdicts that change since samples look like others, by `Member.number`."""
    if rule.policy == "ignore":
        return {}
    changed: dict[int, Verdict] = {}
    for cluster in clusters_of(members, rule.radius_bits):
        changed |= _settle_one(cluster, rule.policy, shares)
    return changed


def clusters_of(members: Sequence[Member], radius_bits: int) -> list[list[Member]]:
    """The clusters of two and more, in no order that means anything."""
    found = np.array([member.seen.phash for member in members], np.uint64)
    hashes, row = np.unique(found, return_inverse=True)
    roots = components(len(hashes), pairs_within(hashes, radius_bits))[row]
    clusters: defaultdict[int, list[Member]] = defaultdict(list)
    for member, root in zip(members, roots.tolist(), strict=True):
        clusters[root].append(member)
    return [cluster for cluster in clusters.values() if len(cluster) > 1]


def _settle_one(cluster: list[Member], policy: Policy, shares: Shares) -> dict[int, Verdict]:
    if policy != "flag":
        split = _split_of(cluster, shares)
        cluster = [it if it.sample.split else it._replace(split=split) for it in cluster]
    ranked = sorted(cluster, key=_rank)
    name = ranked[0].sample.key
    verdicts = {it.number: Verdict(it.split, cluster=name) for it in ranked}
    if policy == "drop":
        stays: dict[str, Member] = {}
        for it in ranked:
            best = stays.setdefault(it.sample.label, it)
            if best is not it:
                verdicts[it.number] = Verdict("", Reason.NEAR_DUPLICATE, _detail(it, best))
    return verdicts


def _split_of(cluster: Sequence[Member], shares: Shares) -> str:
    given = [it.sample.split for it in cluster if it.sample.split]
    if given:
        return min(given, key=SPLIT_RANK.__getitem__)
    return shares.split_of(min(it.seen.sha256 for it in cluster))


def _rank(it: Member) -> tuple[bool, int, int, int, str, str]:
    """The first stands for its cluster. What a model is judged by stays whole, as with equals."""
    size = it.seen.width * it.seen.height
    given = not it.sample.split, SPLIT_RANK[it.split]
    return *given, -size, -it.seen.num_bytes, it.seen.sha256, it.sample.key


def _detail(it: Member, best: Member) -> str:
    distance = (it.seen.phash ^ best.seen.phash).bit_count()
    return f"like {best.sample.key}: {distance} of {NUM_BITS} bits differ"
