"""One file on its way into raw/: what is kept, what is resumed, what is refused."""

import bz2
import gzip
import hashlib
import lzma
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.core.errors import HeadraceError
from pipelines.core.sources.fetch import Fetched, Folders, Item, compressed_tar, fetch
from pipelines.core.sources.files import list_source
from pipelines.core.sources.remote import Patience
from tests.servers import Web, serve_web

PATIENCE = Patience(2, 1.0)
DATA = random.Random(0).randbytes(200_000)


@pytest.fixture
def web() -> Iterator[Web]:
    with serve_web() as server:
        server.files["a"] = DATA
        yield server


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    found = Folders(tmp_path / "out", tmp_path / "previous", tmp_path / "state")
    for folder in (found.out, found.previous, found.state):
        folder.mkdir()
    return found


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def item(url: str, pin: str | None = None, unpacked_from: str = "") -> Item:
    (file,) = list_source(url, Path("/"), PATIENCE)
    return Item(file, "dir/a", pin, unpacked_from)


def bodies(web: Web) -> list[str]:
    return [request for request in web.requests if request.startswith("GET")]


def test_download_lands_in_its_place(web: Web, folders: Folders) -> None:
    fetched = fetch(item(f"{web.url}/a"), None, folders, PATIENCE)
    assert fetched == Fetched(sha256(DATA), 200_000, sha256(DATA), 200_000)
    assert (folders.out / "dir/a").read_bytes() == DATA


@pytest.mark.parametrize("is_equal", [True, False])
def test_local_file_that_raw_holds_already_is_kept_as_the_same_file(
    folders: Folders, tmp_path: Path, is_equal: bool
) -> None:
    source, kept = tmp_path / "a", folders.previous / "dir/a"
    source.write_bytes(DATA)
    kept.parent.mkdir()
    kept.write_bytes(DATA if is_equal else DATA[::-1])
    fetched = fetch(item(str(source)), None, folders, PATIENCE)
    assert fetched == Fetched(sha256(DATA), 200_000, sha256(DATA), 200_000)
    assert (folders.out / "dir/a").read_bytes() == DATA
    assert (folders.out / "dir/a").samefile(kept) == is_equal
    assert not (folders.out / "dir/a").samefile(source)


def test_finished_download_is_not_made_again(web: Web, folders: Folders) -> None:
    first = fetch(item(f"{web.url}/a"), None, folders, PATIENCE)
    (folders.out / "dir/a").unlink()
    web.requests.clear()
    assert fetch(item(f"{web.url}/a"), None, folders, PATIENCE) == first
    assert bodies(web) == []
    assert (folders.out / "dir/a").read_bytes() == DATA


def test_partial_download_goes_on_for_the_same_version_only(web: Web, folders: Folders) -> None:
    same = item(f"{web.url}/a")
    (folders.state / f"{same.identity}.part").write_bytes(DATA[:150_000])
    fetch(same, None, folders, PATIENCE)
    assert web.num_bytes_asked == 50_000
    web.files["a"] = DATA[::-1]
    other = item(f"{web.url}/a")
    assert other.identity != same.identity
    fetch(other, None, folders, PATIENCE)
    assert (folders.out / "dir/a").read_bytes() == DATA[::-1]


def test_file_without_version_or_checksum_is_never_continued(web: Web, folders: Folders) -> None:
    web.has_versions = False
    one = item(f"{web.url}/a")
    (folders.state / f"{one.identity}.part").write_bytes(bytes(150_000))
    fetch(one, Fetched("", 0, "", 0), folders, PATIENCE)
    assert (folders.out / "dir/a").read_bytes() == DATA


def test_what_is_known_is_kept_from_the_raw_there_was(web: Web, folders: Folders) -> None:
    (folders.previous / "dir").mkdir()
    (folders.previous / "dir/a").write_bytes(DATA)
    known = Fetched(sha256(DATA), 200_000, sha256(DATA), 200_000)
    assert fetch(item(f"{web.url}/a"), known, folders, PATIENCE) == known
    assert bodies(web) == []
    assert (folders.out / "dir/a").read_bytes() == DATA


def test_checksum_of_the_card_is_as_good_as_knowing(web: Web, folders: Folders) -> None:
    (folders.previous / "dir").mkdir()
    (folders.previous / "dir/a").write_bytes(DATA)
    fetch(item(f"{web.url}/a", sha256(DATA)), None, folders, PATIENCE)
    assert bodies(web) == []


def test_spoiled_file_in_the_old_raw_is_not_kept(web: Web, folders: Folders) -> None:
    (folders.previous / "dir").mkdir()
    (folders.previous / "dir/a").write_bytes(DATA[:-1] + b"?")
    known = Fetched(sha256(DATA), 200_000, sha256(DATA), 200_000)
    fetch(item(f"{web.url}/a"), known, folders, PATIENCE)
    assert (folders.out / "dir/a").read_bytes() == DATA


@pytest.mark.parametrize("where", ["web", "here"])
def test_other_content_than_the_card_names_is_refused(
    web: Web, folders: Folders, tmp_path: Path, where: str
) -> None:
    (tmp_path / "a").write_bytes(DATA)
    url = f"{web.url}/a" if where == "web" else str(tmp_path / "a")
    with pytest.raises(HeadraceError, match="not the file that the card names") as caught:
        fetch(item(url, "0" * 64), None, folders, PATIENCE)
    assert caught.value.found == f"sha256: {sha256(DATA)}"
    assert list(folders.state.iterdir()) == []  # Nothing to go on from, to the same end.


@pytest.mark.parametrize(
    ("ending", "pack"),
    [(".tar.gz", gzip.compress), (".tbz2", bz2.compress), (".tar.xz", lzma.compress)],
)
@pytest.mark.parametrize("where", ["web", "here"])
def test_compressed_tar_is_unpacked_and_its_own_bytes_are_checked(
    web: Web,
    folders: Folders,
    tmp_path: Path,
    ending: str,
    pack: Callable[[bytes], bytes],
    where: str,
) -> None:
    packed = pack(DATA)
    web.files["a"] = packed
    (tmp_path / "a").write_bytes(packed)
    url = f"{web.url}/a" if where == "web" else str(tmp_path / "a")
    fetched = fetch(item(url, sha256(packed), ending), None, folders, PATIENCE)
    assert fetched == Fetched(sha256(packed), len(packed), sha256(DATA), len(DATA))
    assert (folders.out / "dir/a").read_bytes() == DATA


@pytest.mark.parametrize(
    ("ending", "pack"),
    [(".tgz", gzip.compress), (".tar.bz2", bz2.compress), (".txz", lzma.compress)],
)
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty"])
def test_damaged_compressed_tar_is_an_error(
    folders: Folders, tmp_path: Path, ending: str, pack: Callable[[bytes], bytes], damage: str
) -> None:
    packed = pack(DATA)
    spoiled = {"cut": packed[:-1000], "garbage": b"garbage" * 100, "empty": b""}[damage]
    (tmp_path / "a").write_bytes(spoiled)
    with pytest.raises(HeadraceError, match="cut or damaged"):
        fetch(item(str(tmp_path / "a"), None, ending), None, folders, PATIENCE)


def test_endings_of_compressed_tars_are_known_in_any_case() -> None:
    assert compressed_tar("A.Tar.GZ") == ".tar.gz"
    assert compressed_tar("a.gz") == ""


def test_killed_copy_is_made_again_in_full(
    web: Web, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("pipelines.core.sources.fetch.os.link", no_links)
    (folders.out / "dir").mkdir()
    (folders.out / "dir/a").write_bytes(b"part of an earlier try")
    fetch(item(f"{web.url}/a"), None, folders, PATIENCE)
    assert (folders.out / "dir/a").read_bytes() == DATA
