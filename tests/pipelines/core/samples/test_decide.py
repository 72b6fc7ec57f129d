import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.core.images.features import Features
from pipelines.core.reasons import Reason
from pipelines.core.samples.clusters import NearDuplicates
from pipelines.core.samples.decide import Rules, Verdict, decide, judge
from pipelines.core.samples.listing import Sample
from pipelines.core.samples.outliers import MaxScores
from pipelines.core.samples.raw import RawFile

RULES = Rules(
    min_side_px=10,
    max_aspect_ratio=2,
    min_contrast=3,
    val_fraction=0.2,
    test_fraction=0.3,
    near_duplicates=NearDuplicates("ignore", 0),
    max_scores=MaxScores(),
)
GOOD = Features(format="PNG", width=20, height=10, mode="RGB", contrast=3, num_frames=1)


def sample(key: str, label: str = "cat", split: str = "") -> Sample:
    return Sample(key, RawFile(f"{key}.png", f"{key}.png", "", 9), label, split)


def content(name: str) -> Features:
    return replace(GOOD, sha256=hashlib.sha256(name.encode()).hexdigest())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"reason": "truncated", "width": 1, "height": 1}, "truncated"),
        ({"width": 9}, "too_small"),
        ({"height": 9, "width": 300}, "too_small"),
        ({"width": 21}, "odd_aspect"),
        ({"width": 10, "height": 21}, "odd_aspect"),
        ({"contrast": 2.99}, "blank"),
        ({"width": 21, "contrast": 0}, "odd_aspect"),
    ],
)
def test_first_rule_that_an_image_breaks_is_its_reason(
    changes: dict[str, Any], reason: str | None
) -> None:
    fault = judge(replace(GOOD, **changes), RULES)
    assert (fault[0] if fault else None) == reason


def test_detail_tells_what_was_found_and_what_was_wanted() -> None:
    assert judge(replace(GOOD, width=7), RULES) == ("too_small", "7 x 10 px, at least 10 px wanted")


def test_an_outlier_goes_before_it_is_compared_with_its_equals() -> None:
    samples = [sample(f"{at:02d}") for at in range(12)] + [sample("dark"), sample("dark too")]
    looks = [replace(content(one.key), brightness=100 + at) for at, one in enumerate(samples[:12])]
    looks += [replace(content("dark"), brightness=1)] * 2
    assert all(verdict.reason is None for verdict in decide(samples[:12], looks[:12], RULES))
    verdicts = decide(samples, looks, replace(RULES, max_scores=MaxScores(darkness=8)))
    assert [verdict.reason for verdict in verdicts] == [None] * 12 + [Reason.OUTLIER] * 2
    assert verdicts[-1].detail.startswith("darkness has z ")


def test_of_equal_samples_the_one_in_evaluation_stays() -> None:
    samples = [sample("a", split="train"), sample("b", split="val"), sample("c", split="test")]
    verdicts = decide(samples, [content("x")] * 3, RULES)
    assert verdicts == [
        Verdict("", Reason.EXACT_DUPLICATE, "equal to c"),
        Verdict("", Reason.EXACT_DUPLICATE, "equal to c"),
        Verdict("test"),
    ]


def test_of_equal_samples_a_given_split_goes_before_a_drawn_one_and_then_the_least_key() -> None:
    verdicts = decide([sample("a"), sample("b", split="train")], [content("x")] * 2, RULES)
    assert [verdict.split for verdict in verdicts] == ["", "train"]
    verdicts = decide([sample("b"), sample("a")], [content("x")] * 2, RULES)
    assert [verdict.detail for verdict in verdicts] == ["equal to a", ""]


def test_equal_content_with_two_labels_goes_altogether() -> None:
    samples = [sample("a"), sample("b", "dog"), sample("c")]
    verdicts = decide(samples, [content("x")] * 3, RULES)
    detail = "3 files of this content are labelled 'cat', 'dog'"
    assert verdicts == [Verdict("", Reason.CONFLICTING_LABELS, detail)] * 3


def test_rejected_images_are_not_compared() -> None:
    empty = Features(reason="unreadable", detail="the file is empty", sha256="e3")
    verdicts = decide([sample("a"), sample("b", "dog")], [empty] * 2, RULES)
    assert {verdict.reason for verdict in verdicts} == {Reason.UNREADABLE}


def test_drawn_splits_have_their_shares() -> None:
    samples = [sample(str(number)) for number in range(4000)]
    verdicts = decide(samples, [content(one.key) for one in samples], RULES)
    splits = [verdict.split for verdict in verdicts]
    assert splits.count("test") == pytest.approx(1200, abs=100)
    assert splits.count("val") == pytest.approx(800, abs=100)


NAMES = st.lists(
    st.tuples(
        st.integers(0, 9), st.sampled_from(["cat", "dog"]), st.sampled_from(["", "train", "test"])
    ),
    max_size=20,
)


@given(NAMES, NAMES)
def test_adding_data_moves_no_old_sample_to_another_split(
    old: list[tuple[int, str, str]], new: list[tuple[int, str, str]]
) -> None:
    def drawn(rows: list[tuple[int, str, str]]) -> dict[str, str]:
        samples = [sample(f"{at:03d}", label) for at, (_, label, _) in enumerate(rows)]
        verdicts = decide(samples, [content(str(name)) for name, _, _ in rows], RULES)
        pairs = zip(samples, verdicts, strict=True)
        return {one.key: verdict.split for one, verdict in pairs if verdict.split}

    before, after = drawn(old), drawn(old + new)
    assert all(after[key] == split for key, split in before.items() if key in after)


@given(NAMES, st.randoms())
def test_verdicts_do_not_depend_on_the_order(rows: list[tuple[int, str, str]], random: Any) -> None:
    pairs = [
        (sample(f"{at:03d}", label, split), content(str(name)))
        for at, (name, label, split) in enumerate(rows)
    ]

    def verdicts(order: list[tuple[Sample, Features]]) -> dict[str, Verdict]:
        found = decide([one for one, _ in order], [seen for _, seen in order], RULES)
        return {one.key: verdict for (one, _), verdict in zip(order, found, strict=True)}

    mixed = list(pairs)
    random.shuffle(mixed)
    assert verdicts(pairs) == verdicts(mixed)
    kept = [seen.sha256 for one, seen in pairs if verdicts(pairs)[one.key].reason is None]
    assert len(kept) == len(set(kept))
