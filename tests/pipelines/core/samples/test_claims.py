from pipelines.core.reasons import Reason
from pipelines.core.samples.claims import Claim, dropped_file, settle
from pipelines.core.samples.listing import Dropped
from pipelines.core.samples.raw import RawFile

FILE = RawFile("a.png", "a.png", "", 9)


def claim(label: str, split: str = "", number: int = 0, file: RawFile = FILE) -> Claim:
    return Claim(file, label, split, ("labels.csv", number))


def settled(
    *claims: Claim, labels: list[str] | None = None, needs_split: bool = False
) -> tuple[list[tuple[str, str, str]], list[Reason]]:
    listing = settle(claims, [], labels, needs_split=needs_split)
    kept = [(sample.key, sample.label, sample.split) for sample in listing.samples]
    return kept, [dropped.reason for dropped in listing.dropped]


def test_one_claim_makes_a_sample() -> None:
    assert settled(claim("cat", "Validation")) == ([("a", "cat", "val")], [])


def test_claims_that_agree_make_one_sample_and_duplicate_rows() -> None:
    kept, reasons = settled(claim("cat"), claim("CAT", number=1), claim("cat", number=2))
    assert kept == [("a", "cat", "")]
    assert reasons == [Reason.DUPLICATE_ROW] * 2


def test_of_rows_with_different_splits_evaluation_keeps_its_own() -> None:
    for splits in (("train", "test"), ("test", "train")):
        kept, reasons = settled(*(claim("cat", split, at) for at, split in enumerate(splits)))
        assert kept == [("a", "cat", "test")]
        assert reasons == [Reason.DUPLICATE_ROW]


def test_claims_with_two_labels_all_go_and_say_which() -> None:
    listing = settle(
        [claim("cat"), claim("dog"), claim("cat", number=2)], [], None, needs_split=False
    )
    assert listing.samples == ()
    assert (
        listing.dropped
        == (Dropped("a", "a.png", Reason.CONFLICTING_LABELS, "labels 'cat', 'dog'"),) * 3
    )


def test_label_outside_the_list_is_unknown_and_an_empty_one_is_none() -> None:
    listing = settle([claim("cta"), claim("")], [], ["cat", "dog"], needs_split=False)
    assert [dropped.reason for dropped in listing.dropped] == ["unknown_label", "no_label"]
    assert "Did you mean 'cat'?" in listing.dropped[0].detail


def test_a_sound_claim_stands_beside_a_faulty_one() -> None:
    kept, reasons = settled(claim("cat"), claim("bird", number=1), labels=["cat", "dog"])
    assert (kept, reasons) == ([("a", "cat", "")], [Reason.UNKNOWN_LABEL])


def test_unknown_split_is_a_reason_and_a_missing_one_only_where_it_is_needed() -> None:
    assert settled(claim("cat", "later")) == ([], [Reason.UNKNOWN_SPLIT])
    assert settled(claim("cat"))[1] == []
    assert settled(claim("cat"), needs_split=True) == ([], [Reason.UNKNOWN_SPLIT])


def test_samples_stand_by_key_and_earlier_drops_stay() -> None:
    before = dropped_file(FILE, Reason.NOT_LISTED, "why")
    files = [RawFile(name, name, "", 9) for name in ("c.png", "b.png")]
    listing = settle([claim("cat", file=file) for file in files], [before], None, needs_split=False)
    assert [sample.key for sample in listing.samples] == ["b", "c"]
    assert listing.dropped == (before,)
