"""The card format that datasets/README.md shows is the one that is read."""

import re
from pathlib import Path

import pytest

from pipelines.core import card
from pipelines.core.typed import field_names

README = Path("datasets/README.md").read_text()
WHOLE, *LAYOUTS = re.findall(r"^```yaml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


HEAD = WHOLE[: WHOLE.index("samples:")]


@pytest.mark.parametrize(
    "text", [WHOLE, *(HEAD + text[text.index("samples:") :] for text in LAYOUTS)]
)
def test_card_that_is_shown_is_valid(tmp_path: Path, text: str) -> None:
    (tmp_path / "dataset.yaml").write_text(text)
    loaded = card.load(tmp_path / "dataset.yaml")
    assert loaded.labels == ("cat", "dog")
    assert loaded.sources[0].to == "2026/cats.zip"


def test_every_layout_is_shown() -> None:
    shown = re.findall(r"^  layout: (\w+)", WHOLE + "".join(LAYOUTS), re.MULTILINE)
    assert sorted(shown) == sorted(card.LAYOUTS)


def test_card_of_the_bundled_dataset_is_valid() -> None:
    loaded = card.load(Path("datasets/fashion/dataset.yaml"))
    assert loaded.labels is not None
    assert loaded.labels[9] == "Ankle boot"


@pytest.mark.parametrize("kind", [card.Card, card.Source, *card.LAYOUTS.values()])
def test_every_key_of_a_card_is_shown(kind: type) -> None:
    shown = re.findall(r"^[- ]*(\w+):", WHOLE + "".join(LAYOUTS), re.MULTILINE)
    assert set(field_names(kind)) <= set(shown)
