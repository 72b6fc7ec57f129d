import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from pipelines.core.card import Card, Folders, Source
from pipelines.core.page.alike import Alike, Cluster, Pair
from pipelines.core.page.facts import Example, Facts, Group
from pipelines.core.page.render import MAX_CLASSES, About, render
from pipelines.core.page.thumbnails import of_bytes
from pipelines.core.reasons import Reason
from pipelines.core.records import SPLITS
from tests.messy import encode
from tests.pictures import picture

ABOUT = About(
    dataset="pets",
    version="0123456789abcdef",
    card=Card(
        title="Cats & dogs",
        licence="MIT",
        origin="here",
        task="classification",
        sources=(Source(url="raw"),),
        samples=Folders(layout="folders"),
    ),
)
MEASURES = ("width", "height", "aspect", "num_bytes", "brightness", "contrast", "sharpness")
EVIL = '<script>alert("x")</script>'


def facts(sizes: tuple[int, ...] = (60, 40, 50), num_labels: int = 2, *groups: Group) -> Facts:
    """A dataset of random looks, with so many samples in train, val and test."""
    rng = np.random.default_rng(3)
    classes = np.zeros((num_labels, len(SPLITS)), np.int64)
    classes[0] = sizes
    if num_labels > 1:
        classes[1:] = [3, 2, 1]
    counts = classes.sum(0)
    numbers = {
        name: {
            split: rng.uniform(1, 200, count).astype(np.float32)
            for split, count in zip(SPLITS, counts, strict=True)
        }
        for name in MEASURES
    }
    return Facts(
        labels=tuple(f"class {number}" for number in range(num_labels)),
        classes=classes,
        numbers=numbers,
        names={"format": {"PNG": counts}, "mode": {"RGB": counts}},
        groups=groups,
    )


def group(reason: str, count: int, *examples: Example) -> Group:
    return Group("clean", reason, "The contrast is below `min_contrast`.", count, examples)


def page(found: Facts, url: str | None = None) -> str:
    return render(ABOUT, found, lambda _: url)


class _Tags(HTMLParser):
    """Whether a page is well-formed, and what it would load."""

    VOID = frozenset({"meta", "link", "img", "br", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(text: str) -> _Tags:
    parser = _Tags()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def test_counts_are_told_as_they_are() -> None:
    text = page(facts((6000, 0, 1000), 1, group("blank", 30)))
    for part in ("7,030</b>samples found", "7,000</b>kept", "30</b>rejected", "6,000</b>train"):
        assert part in text
    assert "<code>min_contrast</code>" in text


def test_a_page_loads_nothing_and_has_no_script() -> None:
    url = of_bytes(encode(picture(), "PNG"), 64)
    parser = tags(page(facts((60, 40, 50), 2, group("blank", 1, Example("a", "a", "", None))), url))
    assert all(link.startswith(("data:", "#")) for link in parser.loads)
    assert parser.names.isdisjoint({"script", "iframe", "object"})


def test_texts_of_the_data_are_escaped() -> None:
    evil = replace(
        facts((9, 9, 9), 2, group(EVIL, 1, Example(EVIL, EVIL, EVIL, None))), labels=(EVIL, "b")
    )
    card = replace(ABOUT.card, title=EVIL, licence=EVIL)
    text = render(replace(ABOUT, card=card, dataset=EVIL), evil, lambda _: None)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    tags(text)


def test_what_has_no_picture_says_so() -> None:
    text = page(facts((9, 9, 9), 2, group("unreadable", 1, Example("", "labels.csv:7", "", None))))
    assert "no picture can be made of it" in text
    assert "<b>labels.csv:7</b>" in text


def test_a_dataset_without_rejections_says_so() -> None:
    assert "Every sample that was found was kept." in page(facts())


@pytest.mark.parametrize("sizes", [(5, 0, 0), (100, 0, 0), (0, 0, 0), (100, 1, 60)])
def test_small_and_missing_splits_are_no_fault(sizes: tuple[int, ...]) -> None:
    text = page(facts(sizes, 1))
    tags(text)
    assert ("There is only one split" in text) == (sum(size > 0 for size in sizes) < 2)
    assert not re.search(r"\bnan\b|\binf\b", text)


def test_a_split_of_few_samples_is_not_drawn_as_a_distribution() -> None:
    assert "(val: too few to draw)" in page(facts((100, 1, 60), 1))
    assert "too few to draw" not in page(facts((100, 0, 60), 1))


def test_a_measure_that_never_differs_is_a_line_and_no_chart() -> None:
    found = facts()
    ones = {
        split: np.full(len(own), 28, np.float32) for split, own in found.numbers["width"].items()
    }
    text = page(replace(found, numbers={**found.numbers, "width": ones}))
    assert "28 in every sample" in text
    assert text.count("<svg") == len(MEASURES) - 1


def test_drift_that_chance_does_not_explain_is_marked() -> None:
    found = facts((300, 0, 300), 1)
    assert 'class="notable"' not in page(found)
    dark = {**found.numbers["brightness"], "test": np.linspace(1, 20, 300, dtype=np.float32)}
    text = page(replace(found, numbers={**found.numbers, "brightness": dark}))
    assert re.search(r'class="notable"><td>brightness', text)


def test_of_many_classes_the_largest_and_smallest_are_shown() -> None:
    text = page(facts((600, 0, 0), 2000))
    assert text.count("<td>class ") == MAX_CLASSES
    assert "<td>class 0</td>" in text
    assert "of 2,000 are shown" in text


def test_a_page_holds_a_few_megabytes_at_most() -> None:
    rng = np.random.default_rng(1)
    noise = picture(112, 112).copy()
    noise.frombytes(rng.integers(0, 256, 112 * 112 * 3, np.uint8).tobytes())
    url = of_bytes(encode(noise, "PNG"), 112)
    examples = [Example("k" * 5000, "p" * 5000, "d" * 5000, None)] * 12
    groups = [group(reason, 10**9, *examples) for reason in Reason]
    text = page(replace(facts((900, 900, 900), 5000, *groups), labels=("l" * 5000,) * 5000), url)
    assert len(text.encode()) < 4_000_000


def test_equal_facts_make_equal_pages() -> None:
    assert page(facts()) == page(facts())


def test_near_duplicates_are_shown_with_pictures_and_counts() -> None:
    url = of_bytes(encode(picture(), "PNG"), 64)
    one, other = (
        Example(key, key, f"{split}, cat", None) for key, split in (("k1", "train"), (EVIL, "test"))
    )
    alike = Alike(
        policy="flag",
        radius_bits=4,
        num_clusters=1234,
        num_samples=5678,
        num_pairs={"train_val": 0, "train_test": 4321, "val_test": 0},
        clusters=(Cluster("k1", 77, ("train", "test"), (one, other)),),
        pairs=(Pair(2, (one, other)),),
    )
    text = render(ABOUT, facts(), lambda _: url, alike)
    parser = tags(text)
    assert "script" not in parser.names
    assert parser.loads.count(str(url)) == 4
    for part in (
        "at most 4 of 64 bits",
        "5,678 in 1,234 clusters",
        "train and test 4,321",
        "2 of 64 bits differ",
        "77, 2 shown",
        "train, test</span>",
        "<code>flag</code>",
    ):
        assert part in text


def test_a_page_says_when_near_duplicates_were_not_sought() -> None:
    assert "Not sought" in page(facts())
