"""Listing and downloading: what comes is whole, whatever the server does on the way."""

import random
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.sources import remote
from pipelines.core.sources.remote import Patience, RemoteFile, download, list_url
from tests.servers import Web, point_at_s3, serve_s3, serve_web

PATIENCE = Patience(max_attempts=3, timeout_s=1.0)
DATA = random.Random(0).randbytes(300_000)


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(remote, "_PIECE_BYTES", 100_000)


@pytest.fixture
def web() -> Iterator[Web]:
    with serve_web() as server:
        server.files["a.zip"] = DATA
        yield server


def fetched(web: Web, target: Path) -> bytes:
    (file,) = list_url(f"{web.url}/a.zip", PATIENCE)
    download(file, target, PATIENCE)
    return target.read_bytes()


def complaint(url: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        list_url(url, PATIENCE)
    return caught.value


def test_file_is_listed_with_size_and_version(web: Web) -> None:
    (file,) = list_url(f"{web.url}/a.zip", PATIENCE)
    assert (file.relative, file.num_bytes) == ("", 300_000)
    assert file.version is not None
    web.files["a.zip"] = DATA[::-1]
    assert list_url(f"{web.url}/a.zip", PATIENCE)[0].version != file.version


def test_file_comes_in_pieces(web: Web, tmp_path: Path) -> None:
    assert fetched(web, tmp_path / "a") == DATA
    assert [request for request in web.requests if "bytes" in request] == [
        "GET a.zip bytes=0-99999",
        "GET a.zip bytes=100000-199999",
        "GET a.zip bytes=200000-299999",
    ]


@pytest.mark.parametrize("fault", ["500", "cut", "stall"])
@pytest.mark.parametrize("has_ranges", [True, False])
def test_faults_on_the_way_are_tried_again(
    web: Web, tmp_path: Path, fault: str, has_ranges: bool
) -> None:
    web.has_ranges = has_ranges
    web.faults = ["", fault, fault]
    assert fetched(web, tmp_path / "a") == DATA


def test_every_piece_has_all_its_attempts(web: Web, tmp_path: Path) -> None:
    web.faults = ["500", "cut", ""] * 3
    assert fetched(web, tmp_path / "a") == DATA


def test_server_that_only_fails_is_given_up(web: Web, tmp_path: Path) -> None:
    web.faults = ["500"] * 100
    (file,) = list_url(f"{web.url}/a.zip", PATIENCE)
    with pytest.raises(HeadraceError, match="it was tried 3 times") as caught:
        download(file, tmp_path / "a", PATIENCE)
    assert caught.value.where == f"{web.url}/a.zip"
    assert len(web.faults) == 97


def test_download_goes_on_where_it_stopped(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA[:250_000])
    assert fetched(web, tmp_path / "a") == DATA
    assert web.num_bytes_asked == 50_000


def test_download_goes_on_without_ranges_too(web: Web, tmp_path: Path) -> None:
    web.has_ranges = False
    (tmp_path / "a").write_bytes(DATA[:250_000])
    assert fetched(web, tmp_path / "a") == DATA


def test_whole_download_asks_for_nothing_more(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    assert fetched(web, tmp_path / "a") == DATA
    assert not [request for request in web.requests if request.startswith("GET")]


def test_file_of_unknown_size_and_version_comes_whole(web: Web, tmp_path: Path) -> None:
    web.is_sized = web.has_versions = False
    (file,) = list_url(f"{web.url}/a.zip", PATIENCE)
    assert (file.num_bytes, file.version) == (None, None)
    assert fetched(web, tmp_path / "a") == DATA


def test_missing_file_is_told_at_once(web: Web) -> None:
    assert complaint(f"{web.url}/b.zip").what == "The source is not there."
    assert len(web.requests) == 2  # HEAD, then GET, as fsspec does


def test_dead_server_is_told_with_its_url() -> None:
    with serve_web() as gone:
        url = f"{gone.url}/a.zip"
    fault = complaint(url)
    assert "it was tried 3 times" in fault.what
    assert fault.where == url


def test_folder_of_any_driver_is_listed_to_the_bottom() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe({"/box/set/b.jpg": b"22", "/box/set/a/1.jpg": b"1", "/box/settle/c": b"3"})
    try:
        files = list_url("memory://box/set", PATIENCE)
        assert [(file.relative, file.num_bytes) for file in files] == [("a/1.jpg", 1), ("b.jpg", 2)]
        assert files[0].url == "memory://box/set"
    finally:
        memory.rm("/box", recursive=True)


def test_driver_without_credentials_says_what_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    point_at_s3("http://127.0.0.1:9", monkeypatch)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    fault = complaint("s3://bucket/a.zip")
    assert fault.what == "The source may not be read."
    assert fault.fix is not None
    assert "AWS_ACCESS_KEY_ID" in fault.fix


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with serve_s3() as address:
        yield address


def test_bucket_is_listed_and_read(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at_s3(s3, monkeypatch)
    client = fsspec.filesystem("s3", skip_instance_cache=True)
    client.mkdir("box")
    client.pipe({"box/set/cat/1.jpg": DATA, "box/set/2 \u00e9.jpg": b"", "box/settle": b"3"})
    files = list_url("s3://box/set", PATIENCE)
    assert [(file.relative, file.num_bytes) for file in files] == [
        ("2 \u00e9.jpg", 0),
        ("cat/1.jpg", 300_000),
    ]
    for file in files:
        download(file, tmp_path / Path(file.relative).name, PATIENCE)
    assert (tmp_path / "1.jpg").read_bytes() == DATA
    assert (tmp_path / "2 \u00e9.jpg").read_bytes() == b""
    assert complaint("s3://box/gone.zip").what == "The source is not there."
    assert list_url("s3://box/settle", PATIENCE)[0].relative == ""


@pytest.mark.parametrize(
    ("url", "is_remote"),
    [
        ("s3://bucket/a.zip", True),
        ("zip://a.csv::https://host/a.zip", True),
        ("file:///data/a.zip", False),
        ("/data/a.zip", False),
        ("../a b.zip", False),
        ("odd::name", True),
        ("a:b.zip", False),
    ],
)
def test_paths_and_urls_are_told_apart(url: str, is_remote: bool) -> None:
    assert remote.is_remote(url) is is_remote


@pytest.mark.parametrize(
    ("url", "path"),
    [("a/b.zip", "/card/a/b.zip"), ("/data/a", "/data/a"), ("file:///data/a%20b", "/data/a b")],
)
def test_local_paths_start_at_the_card(url: str, path: str) -> None:
    assert remote.local_path(url, Path("/card")) == Path(path)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/a/cats%20b.zip?raw=1#x", "cats b.zip"),
        ("s3://bucket/a%20b?.zip", "a%20b?.zip"),
        ("/data/cats/", "cats"),
        ("zip://in/labels.csv::https://host/a.zip", "labels.csv"),
        ("https://host/", ""),
    ],
)
def test_last_part_of_a_url_is_a_file_name(url: str, name: str) -> None:
    assert remote.last_part(url) == name


def test_versions_tell_checksum_and_time() -> None:
    info = {"ETag": '"1"', "LastModified": "today", "size": 3}
    assert remote._remote_file("u", "p", "", info) == RemoteFile("u", "p", "", 3, '"1"||today')
    assert remote._remote_file("u", "p", "", {"size": 3}).version is None
