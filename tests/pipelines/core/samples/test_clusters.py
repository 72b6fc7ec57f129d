"""Which samples are near-duplicates, which split they have and which of them stays."""

import hashlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.images.features import Features
from pipelines.core.reasons import Reason
from pipelines.core.samples.clusters import (
    Member,
    NearDuplicates,
    Policy,
    Shares,
    Verdict,
    clusters_of,
    settle,
)
from pipelines.core.samples.listing import Sample
from pipelines.core.samples.raw import RawFile

SHARES = Shares(val=0.3, test=0.3)
DROP, TOGETHER = NearDuplicates("drop", 2), NearDuplicates("keep_together", 2)


def member(number: int, phash: int, split: str = "", label: str = "cat", side: int = 10) -> Member:
    """A sample of its own content; the key of number 3 is `k003`."""
    key = f"k{number:03d}"
    sha256 = hashlib.sha256(key.encode()).hexdigest()
    sample = Sample(key, RawFile(key, key, "", 9), label, split)
    seen = Features(sha256=sha256, width=side, height=side, phash=phash)
    return Member(number, sample, seen, split or SHARES.split_of(sha256))


def chain(*splits: str) -> list[Member]:
    """Each like the one before and the one after, and the first unlike the last."""
    return [member(at, (1 << 2 * at) - 1, split) for at, split in enumerate(splits)]


def outcome(members: list[Member], rule: NearDuplicates) -> dict[str, Verdict]:
    """The verdict on each sample, by key."""
    changed = settle(members, rule, SHARES)
    return {it.sample.key: changed.get(it.number, Verdict(it.split)) for it in members}


def test_a_chain_of_samples_that_look_alike_is_one_cluster() -> None:
    alone = member(9, 2**64 - 2**40)
    clusters = clusters_of([*chain("", "", ""), alone], 2)
    assert [[it.number for it in cluster] for cluster in clusters] == [[0, 1, 2]]
    assert clusters_of([*chain("", "", ""), alone], 1) == []


def test_policy_ignore_changes_nothing() -> None:
    assert settle(chain("", ""), NearDuplicates("ignore", 2), SHARES) == {}


def test_policy_flag_names_the_cluster_and_changes_no_split() -> None:
    members = chain("train", "", "test")
    verdicts = outcome(members, NearDuplicates("flag", 2))
    assert [it.split for it in verdicts.values()] == [it.split for it in members]
    assert {it.cluster for it in verdicts.values()} == {"k002"}


def test_what_is_like_nothing_has_no_cluster() -> None:
    assert outcome([member(0, 0), member(1, 2**40 - 1)], TOGETHER)["k000"].cluster == ""


def test_drawn_splits_keep_a_cluster_together_by_its_least_content() -> None:
    members = chain(*[""] * 12)
    assert len({it.split for it in members}) > 1
    least = min(members, key=lambda it: it.seen.sha256)
    splits = {verdict.split for verdict in outcome(members, TOGETHER).values()}
    assert splits == {SHARES.split_of(least.seen.sha256)}


@pytest.mark.parametrize("given_split", ["train", "val", "test"])
def test_drawn_splits_follow_a_given_one(given_split: str) -> None:
    verdicts = outcome(chain("", given_split, ""), TOGETHER)
    assert {verdict.split for verdict in verdicts.values()} == {given_split}
    assert {verdict.cluster for verdict in verdicts.values()} == {"k001"}


def test_given_splits_stand_also_where_they_leak() -> None:
    splits = [verdict.split for verdict in outcome(chain("train", "val", ""), TOGETHER).values()]
    assert splits == ["train", "val", "val"]


def test_of_those_that_look_alike_the_largest_stays() -> None:
    members = [member(0, 0), member(1, 1, side=20), member(2, 3)]
    verdicts = outcome(members, DROP)
    assert verdicts["k000"] == ("", Reason.NEAR_DUPLICATE, "like k001: 1 of 64 bits differ", "")
    assert (verdicts["k001"].reason, verdicts["k001"].cluster) == (None, "k001")
    assert verdicts["k002"].reason == Reason.NEAR_DUPLICATE


def test_what_judges_a_model_stays_and_goes_from_its_training() -> None:
    verdicts = outcome([member(0, 0, "train", side=90), member(1, 0, "test")], DROP)
    assert verdicts["k000"].reason == Reason.NEAR_DUPLICATE
    assert verdicts["k001"] == Verdict("test", cluster="k001")


def test_one_of_each_label_stays_and_they_stay_together() -> None:
    labels = ["cat", "dog", "cat", "dog"]
    verdicts = outcome([member(at, 0, label=label) for at, label in enumerate(labels)], DROP)
    kept = {key: it for key, it in verdicts.items() if it.reason is None}
    assert {labels[int(key[1:])] for key in kept} == {"cat", "dog"}
    assert len(kept) == 2
    assert len({it.split for it in kept.values()}) == len({it.cluster for it in kept.values()}) == 1


HASHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 11), max_size=6).map(lambda bits: sum({1 << bit for bit in bits})),
        st.sampled_from(["", "", "", "train", "test"]),
        st.sampled_from(["cat", "dog"]),
    ),
    max_size=14,
)
POLICIES = st.sampled_from(["flag", "keep_together", "drop"])


def members_of(rows: list[tuple[int, str, str]]) -> list[Member]:
    return [member(at, *row) for at, row in enumerate(rows)]


@given(HASHES, POLICIES, st.randoms())
def test_verdicts_do_not_depend_on_the_order(
    rows: list[tuple[int, str, str]], policy: Policy, shuffle: random.Random
) -> None:
    rule = NearDuplicates(policy, 2)
    members = members_of(rows)
    mixed = list(members)
    shuffle.shuffle(mixed)
    assert outcome(members, rule) == outcome(mixed, rule)


@given(HASHES, st.sampled_from(["keep_together", "drop"]))
def test_only_given_splits_put_those_that_look_alike_apart(
    rows: list[tuple[int, str, str]], policy: Policy
) -> None:
    members = members_of(rows)
    verdicts = outcome(members, NearDuplicates(policy, 2))
    for cluster in clusters_of(members, 2):
        kept = [it for it in cluster if verdicts[it.sample.key].reason is None]
        splits = {verdicts[it.sample.key].split for it in kept}
        assert len(splits) <= max(1, len({it.sample.split for it in cluster} - {""}))
        assert kept


@given(HASHES, HASHES, st.sampled_from(["flag", "keep_together", "drop"]))
def test_new_data_changes_only_the_clusters_that_it_joins(
    old: list[tuple[int, str, str]], new: list[tuple[int, str, str]], policy: Policy
) -> None:
    rule = NearDuplicates(policy, 2)
    members = members_of(old + new)
    before, after = outcome(members[: len(old)], rule), outcome(members, rule)
    joined: set[Any] = {
        it.sample.key
        for cluster in clusters_of(members, 2)
        if any(it.number >= len(old) for it in cluster)
        for it in cluster
    }
    assert all(after[key] == verdict for key, verdict in before.items() if key not in joined)
