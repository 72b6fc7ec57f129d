"""The page that people look at, and that a browser shows without a network."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.line import explain_in, make_line
from tests.messy import messy_files
from tests.project import Shared

CHROMIUM = shutil.which("chromium")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium"
)
COUNT_PICTURES = """
<script>
addEventListener("load", () => {
  const shown = [...document.images].filter((image) => image.naturalWidth > 1);
  const wide = document.documentElement.scrollWidth > innerWidth;
  document.title = `${shown.length} of ${document.images.length} shown, wide: ${wide}`;
});
</script>
"""


@pytest.fixture
def line(shared: Shared) -> Path:
    """The messy dataset behind `clean`, `shard` and `decode`, and its page."""

    def make(folder: Path) -> None:
        make_line(folder)
        explain_in(folder)

    return shared("explained", make)


def browse(page: Path, *flags: str) -> tuple[str, str]:
    """What a browser makes of a page: what it prints, and its log."""
    assert CHROMIUM is not None
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run(
        [CHROMIUM, *FLAGS, profile, "--enable-logging=stderr", *flags, page.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout, done.stderr


def test_the_page_tells_of_every_reason_and_file(line: Path) -> None:
    text = (line / "report.html").read_text()
    assert f"{len(messy_files())}</b>samples found" in text
    for reason in {reason for _, reason in messy_files().values() if reason}:
        assert f">{reason}<span" in text
    assert "datasets/pets · licence MIT" in text
    assert "Cats &amp; dogs &lt;of our street&gt;" in text


def test_every_rejected_file_that_is_an_image_has_a_picture(line: Path) -> None:
    text = (line / "report.html").read_text()
    shown = Counter(re.findall(r'<img [^>]*alt="([^"/]*)/', text))
    # Truncated, odd, blank, heavy, double: what Pillow can open at all.
    assert shown["cat"] >= 7
    assert shown["dog"] >= 7
    lost = Counter(reason for _, reason in messy_files().values() if reason)
    assert text.count("<figure>") == sum(min(count, 4) for count in lost.values())
    assert text.count("<figure>") == text.count("<img") + text.count("no picture can be made")


def test_equal_data_make_equal_bytes(line: Path, tmp_path: Path) -> None:
    shutil.copytree(line, tmp_path / "elsewhere")
    again = explain_in(tmp_path / "elsewhere", "again.html")
    assert again.read_bytes() == (line / "report.html").read_bytes()


def test_the_number_of_pictures_is_a_param(line: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(line, tmp_path / "copy")
    params = copy / "params.yaml"
    params.write_text(params.read_text().replace('"num_pictures": 4', '"num_pictures": 0'))
    assert "<img" not in explain_in(copy).read_text()


@needs_chromium
def test_a_browser_shows_every_picture_and_logs_no_error(line: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = (line / "report.html").read_text()
    page.write_text(text)
    dom, log = browse(page, "--dump-dom")
    assert "CONSOLE" not in log
    assert dom.count("<img") == text.count("<img")
    # The page forbids scripts: the one that counts for us needs a copy which does not.
    page.write_text(re.sub("<meta http-equiv.*?>", "", text) + COUNT_PICTURES)
    dom, _ = browse(page, "--dump-dom")
    count = text.count("<img")
    assert f"<title>{count} of {count} shown, wide: false</title>" in dom


@needs_chromium
def test_a_page_that_loads_something_is_stopped_and_logged(line: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text((line / "report.html").read_text() + COUNT_PICTURES)
    dom, log = browse(page, "--dump-dom")
    assert "CONSOLE" in log
    assert "shown, wide" not in re.findall("<title>.*?</title>", dom)[0]


@needs_chromium
def test_the_page_is_drawn(line: Path, tmp_path: Path) -> None:
    page = shutil.copy(line / "report.html", tmp_path / "report.html")
    target = tmp_path / "screen.png"
    browse(Path(page), f"--screenshot={target}", "--window-size=1000,1200")
    with Image.open(target) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 1000
