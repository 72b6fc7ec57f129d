from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipelines.commands.diff.compare import (
    ABSENT,
    KEPT,
    Change,
    Changes,
    Rejection,
    Sample,
    Side,
    changes,
)


def side(*rows: Sample | Rejection) -> Side:
    kept = [row for row in rows if isinstance(row, Sample)]
    return Side(
        kept={row.key: row for row in kept},
        rejected=[row for row in rows if isinstance(row, Rejection)],
        labels=Counter(row.label for row in kept),
        splits=Counter(row.split for row in kept),
    )


def sample(key: str, label: str = "cat", split: str = "train", sha256: str = "") -> Sample:
    return Sample(key, label, split, sha256 or f"content of {key}")


def rejection(key: str, reason: str = "blank", path: str = "a.png") -> Rejection:
    return Rejection(key, path, reason, "", "clean")


def keys(rows: tuple[Sample, ...]) -> list[str]:
    return [row.key for row in rows]


def test_added_and_removed_samples_are_told_by_key() -> None:
    made = changes(side(sample("a"), sample("b")), side(sample("b"), sample("c")))
    assert (keys(made.added), keys(made.removed)) == (["c"], ["a"])


def test_equal_versions_differ_in_nothing() -> None:
    rows = sample("a"), rejection("b"), rejection("", path="labels.csv:7")
    assert changes(side(*rows), side(*rows)).is_empty


def test_a_sample_may_change_in_label_split_and_content_at_once() -> None:
    made = changes(side(sample("a")), side(sample("a", "dog", "val", "other")))
    assert [pair.after.label for pair in made.relabelled] == ["dog"]
    assert [pair.after.split for pair in made.moved] == ["val"]
    assert [pair.after.sha256 for pair in made.content_changed] == ["other"]
    assert not made.added
    assert not made.removed


def test_equal_content_under_a_new_key_is_a_renamed_sample() -> None:
    made = changes(side(sample("a", sha256="x")), side(sample("b", "dog", sha256="x")))
    assert [(pair.before.key, pair.after.key) for pair in made.renamed] == [("a", "b")]
    assert [pair.after.key for pair in made.relabelled] == ["b"]
    assert not made.added
    assert not made.removed


def test_renames_are_one_to_one() -> None:
    before = side(sample("a", sha256="x"))
    after = side(sample("b", sha256="x"), sample("c", sha256="x"))
    made = changes(before, after)
    assert [(pair.before.key, pair.after.key) for pair in made.renamed] == [("a", "b")]
    assert keys(made.added) == ["c"]


def test_a_rejection_says_what_the_sample_was_before() -> None:
    before = side(sample("a"), rejection("b", "blank"))
    after = side(rejection("a"), rejection("b", "too_small"), rejection("c"))
    made = changes(before, after)
    told = [(change.rejection.key, change.other) for change in made.newly_rejected]
    assert told == [("a", KEPT), ("b", "blank"), ("c", ABSENT)]
    assert keys(made.removed) == []


def test_a_rejection_that_is_gone_says_what_became_of_the_sample() -> None:
    made = changes(side(rejection("a"), rejection("b")), side(sample("a")))
    told = [(change.rejection.key, change.other) for change in made.no_longer_rejected]
    assert told == [("a", KEPT), ("b", ABSENT)]
    assert keys(made.added) == []


def test_one_more_rejection_of_a_key_is_one_change() -> None:
    twice = rejection("a", "duplicate_row", "t.csv:1"), rejection("a", "duplicate_row", "t.csv:2")
    made = changes(side(sample("a"), twice[0]), side(sample("a"), *twice))
    assert len(made.newly_rejected) == 1
    assert not made.no_longer_rejected


@st.composite
def sides(draw: st.DrawFn) -> Side:
    """Some of six samples, each kept or rejected."""
    rows: list[Sample | Rejection] = []
    for key in draw(st.sets(st.sampled_from("abcdef"))):
        if draw(st.booleans()):
            label, split = draw(st.sampled_from(("cat", "dog"))), draw(st.sampled_from(("t", "v")))
            rows.append(sample(key, label, split, draw(st.sampled_from("xyz"))))
        else:
            rows.append(rejection(key, draw(st.sampled_from(("blank", "truncated")))))
    return side(*rows)


@given(sides(), sides())
def test_the_changes_account_for_every_sample(before: Side, after: Side) -> None:
    made = changes(before, after)
    kept = set(before.kept) | {change.rejection.key for change in _kept(made, newly=False)}
    kept -= {change.rejection.key for change in _kept(made, newly=True)}
    kept = (kept - set(keys(made.removed))) | set(keys(made.added))
    kept -= {pair.before.key for pair in made.renamed}
    kept |= {pair.after.key for pair in made.renamed}
    assert kept == set(after.kept)


def _kept(made: Changes, *, newly: bool) -> list[Change]:
    rows = made.newly_rejected if newly else made.no_longer_rejected
    return [change for change in rows if change.other == KEPT]


@given(sides(), sides())
def test_the_way_back_is_the_way_forth_turned_round(before: Side, after: Side) -> None:
    forth, back = changes(before, after), changes(after, before)
    assert len(forth.renamed) == len(back.renamed)
    assert {row.sha256 for row in forth.added} == {row.sha256 for row in back.removed}
    assert {change.rejection for change in forth.newly_rejected} == {
        change.rejection for change in back.no_longer_rejected
    }
