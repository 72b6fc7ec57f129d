from collections import Counter

import pytest

from pipelines.commands.diff import show
from pipelines.commands.diff.compare import Rejection, Sample, Side, changes
from pipelines.commands.diff.show import Comparison
from pipelines.commands.diff.version import Version


def version(name: str, digest: str | None, num_buckets: int = 0, *notes: str) -> Version:
    files = dict.fromkeys(range(num_buckets))
    return Version(name, "mill", digest, files, {}, frozenset(), notes)  # type: ignore[arg-type]


def side(labels: dict[str, str], *rejected: Rejection) -> Side:
    kept = {key: Sample(key, label, "train", key) for key, label in labels.items()}
    return Side(kept, rejected, Counter(labels.values()), Counter({"train": len(kept)}))


def comparison(before: Side, after: Side) -> Comparison:
    return Comparison(
        version("v1 (0123abc)", "a" * 64),
        version("workspace", None, 0, "clean is out of date"),
        (before, after),
        changes(before, after),
    )


MANY = comparison(side({"x": "cat"}), side({f"k{number:02d}": "dog" for number in range(12)}))
SOME = comparison(
    side({"a": "cat", "b": "cat"}),
    side({"a": "dog"}, Rejection("b", "b.png", "blank", "contrast 0", "clean")),
)


def test_a_person_reads_versions_counts_and_keys() -> None:
    assert show.as_text(SOME).splitlines() == [
        "Samples of mill: v1 (0123abc) -> workspace",
        "",
        "                       before    after",
        "dataset version  aaaaaaaaaaaa  unknown",
        "kept                        2        1  -1",
        "  train                     2        1  -1",
        "  val                       0        0",
        "  test                      0        0",
        "rejected                    0        1  +1",
        "  blank                     0        1  +1",
        "",
        "Relabelled (1)",
        "  a  cat -> dog",
        "",
        "Newly rejected (1)",
        "  blank  b  contrast 0 [clean; was kept]",
        "",
        "class  before  after",
        "cat         2      0  -2",
        "dog         0      1  +1",
        "",
        "Note: clean is out of date",
    ]


def test_long_lists_are_cut_and_say_how_to_see_the_rest() -> None:
    text = show.as_text(MANY)
    assert "Added (12)" in text
    assert "  and 2 more (--all)" in text
    assert "k11" not in text
    assert "k11" in show.as_text(MANY, show_all=True)


def test_no_change_is_said_in_words() -> None:
    same = side({"a": "cat"})
    assert "No sample differs." in show.as_text(comparison(same, same))


def test_machines_get_every_sample() -> None:
    told = show.as_json(MANY)
    assert isinstance(told["added"], list)
    assert len(told["added"]) == 12
    assert told["added"][0] == {"key": "k00", "label": "dog", "split": "train", "sha256": "k00"}


def test_machines_get_what_people_read() -> None:
    told = show.as_json(SOME)
    assert told["relabelled"] == [{"key": "a", "before": "cat", "after": "dog"}]
    assert isinstance(told["newly_rejected"], list)
    assert told["newly_rejected"][0] == {
        "key": "b",
        "path": "b.png",
        "reason": "blank",
        "detail": "contrast 0",
        "stage": "clean",
        "was": "kept",
    }
    assert told["notes"] == ["clean is out of date"]
    after = told["after"]
    assert isinstance(after, dict)
    assert (after["labels"], after["rejected"]) == ({"dog": 1}, {"blank": 1})


@pytest.mark.parametrize(("counts", "is_told"), [((4, 8), True), ((4, 4), False)])
def test_other_buckets_are_noted(counts: tuple[int, int], is_told: bool) -> None:
    same = side({"a": "cat"})
    before, after = (version("v", None, count) for count in counts)
    found = Comparison(before, after, (same, same), changes(same, same))
    assert any("every shard is another one" in note for note in found.notes) == is_told
