from pipelines.core.samples.listing import place
from pipelines.core.samples.raw import RawFile


def test_place_of_a_file_leads_into_its_archive() -> None:
    assert place(RawFile("2026/cat/1.jpg", "2026/a.zip", "cat/1.jpg", 9)) == "2026/a.zip/cat/1.jpg"
    assert place(RawFile("cat/1.jpg", "cat/1.jpg", "", 9)) == "cat/1.jpg"
