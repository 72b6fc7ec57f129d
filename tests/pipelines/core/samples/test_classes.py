from collections import Counter

import pytest

from pipelines.core.records import SPLITS
from pipelines.core.samples.classes import SPLIT_NAMES, SPLIT_RANK, Labels, split_named


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("train", "train"),
        (" Training ", "train"),
        ("VALID", "val"),
        ("validation", "val"),
        ("dev", "val"),
        ("Test", "test"),
        ("later", None),
        ("", None),
    ],
)
def test_splits_are_known_by_their_usual_names(text: str, split: str | None) -> None:
    assert split_named(text) == split


def test_names_and_ranks_cover_the_three_splits() -> None:
    assert set(SPLIT_NAMES.values()) == set(SPLIT_RANK) == set(SPLITS)


def test_spellings_of_a_listed_class_are_that_class() -> None:
    labels = Labels(["T-shirt/top", "\u00dcber"], Counter(["t-shirt/TOP ", "u\u0308ber", "hat"]))
    assert labels.names == ("T-shirt/top", "\u00dcber")
    assert labels.by_spelling == {"t-shirt/TOP ": "T-shirt/top", "u\u0308ber": "\u00dcber"}
    assert labels.merged == ("t-shirt/TOP  -> T-shirt/top", "u\u0308ber -> \u00dcber")


def test_without_a_list_the_most_frequent_spelling_names_the_class() -> None:
    labels = Labels(None, Counter({"dog": 5, "Dog": 2, "CAT": 1, "Cat": 1, "ant": 1}))
    assert labels.names == ("CAT", "ant", "dog")
    assert labels.by_spelling["Dog"] == "dog"
    assert labels.merged == ("Cat -> CAT", "Dog -> dog")
