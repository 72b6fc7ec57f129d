"""Deciding which samples stay: features and rules in, a split or a reason out.

Opens no file, so that a changed threshold costs a pass over stored features. Works on plain rows,
about 10 microseconds each. The rules are looked at in this order, and a sample has one reason, the
first that fits:

1. what the look at the file found: too many bytes, unreadable, unsupported, too many pixels,
   truncated
2. too small, odd aspect, blank
3. outliers, as `outliers` says
4. conflicting labels: samples of equal bytes and different labels all go
5. exact duplicates: of samples of equal bytes and label one stays
6. near-duplicates, as `clusters` says
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipelines.core.images.features import Features
from pipelines.core.reasons import Reason
from pipelines.core.samples import clusters, outliers
from pipelines.core.samples.classes import SPLIT_RANK
from pipelines.core.samples.clusters import Member, NearDuplicates, Shares, Verdict
from pipelines.core.samples.listing import Sample
from pipelines.core.samples.outliers import MaxScores

__all__ = ["Rules", "Verdict", "decide", "judge"]


@dataclass(frozen=True)
class Rules:
    """Thresholds, and the shares of samples without a given split."""

    min_side_px: int
    max_aspect_ratio: float
    min_contrast: float
    val_fraction: float
    test_fraction: float
    near_duplicates: NearDuplicates
    max_scores: MaxScores

    @property
    def shares(self) -> Shares:
        """Of drawn splits."""
        return Shares(self.val_fraction, self.test_fraction)


def decide(samples: Sequence[Sample], features: Iterable[Features], rules: Rules) -> list[Verdict]:
    """The verdict on each sample of a dataset, in the order of `samples`.

    Splits that are given stand. Others are drawn from a hash of the content, which does not depend
    on what else there is, and is the same for equal content; but near-duplicates that are to stay
    together have one split, as `clusters` says.
    """
    verdicts: list[Verdict] = []
    sound: dict[int, Features] = {}
    for number, (sample, seen) in enumerate(zip(samples, features, strict=True)):
        fault = judge(seen, rules)
        if fault is None:
            sound[number] = seen
            verdicts.append(Verdict(sample.split or rules.shares.split_of(seen.sha256)))
        else:
            verdicts.append(Verdict("", *fault))
    for number, detail in _outliers(sound, rules.max_scores).items():
        verdicts[number] = Verdict("", Reason.OUTLIER, detail)
        del sound[number]
    by_content: dict[str, list[int]] = defaultdict(list)
    for number, seen in sound.items():
        by_content[seen.sha256].append(number)
    for same in by_content.values():
        if len(same) > 1:
            _settle_equals(same, samples, verdicts)
    members = [
        Member(number, samples[number], seen, verdicts[number].split)
        for number, seen in sound.items()
        if verdicts[number].reason is None
    ]
    for number, verdict in clusters.settle(members, rules.near_duplicates, rules.shares).items():
        verdicts[number] = verdict
    return verdicts


def _outliers(sound: Mapping[int, Features], limits: MaxScores) -> dict[int, str]:
    """The details of those that are beyond a limit, by number."""
    if limits == MaxScores():
        return {}
    numbers = list(sound)
    scores = outliers.scores_of(outliers.columns_of(list(sound.values())))
    return {numbers[row]: detail for row, detail in outliers.find(scores, limits).items()}


def judge(seen: Features, rules: Rules) -> tuple[Reason, str] | None:
    """The first fault of one image by itself, with its particulars, or None."""
    if seen.reason:
        return Reason(seen.reason), seen.detail
    short, long = sorted((seen.width, seen.height))
    size = f"{seen.width} x {seen.height} px"
    if short < rules.min_side_px:
        return Reason.TOO_SMALL, f"{size}, at least {rules.min_side_px} px wanted"
    if long > rules.max_aspect_ratio * short:
        return Reason.ODD_ASPECT, f"{size}, at most 1:{rules.max_aspect_ratio:g} wanted"
    if seen.contrast < rules.min_contrast:
        detail = f"contrast {seen.contrast:.3g}, at least {rules.min_contrast:g} wanted"
        return Reason.BLANK, detail
    return None


def _settle_equals(same: list[int], samples: Sequence[Sample], verdicts: list[Verdict]) -> None:
    """Keep one of the samples with equal bytes, or none where their labels differ.

    The one that stays has a given split before a drawn one, then test before val before train (so
    that what a model is judged by stays whole, and out of its training), then the least key.
    """
    labels = sorted({samples[number].label for number in same})
    if len(labels) > 1:
        detail = f"{len(same)} files of this content are labelled " + ", ".join(map(repr, labels))
        for number in same:
            verdicts[number] = Verdict("", Reason.CONFLICTING_LABELS, detail)
        return

    def rank(number: int) -> tuple[bool, int, str]:
        sample = samples[number]
        return not sample.split, SPLIT_RANK[verdicts[number].split], sample.key

    best, *others = sorted(same, key=rank)
    for number in others:
        detail = f"equal to {samples[best].key}"
        verdicts[number] = Verdict("", Reason.EXACT_DUPLICATE, detail)
