"""The stage ingest: raw/ is what the card names, or stays what it was."""

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from ruamel.yaml import YAML

from pipelines import ingest
from pipelines.core import stage
from pipelines.core.errors import HeadraceError
from pipelines.core.sources import remote
from tests.servers import Web, point_at_s3, serve_s3, serve_web

ROOT = Path(__file__).parents[2]
DATA = random.Random(0).randbytes(300_000)
ARGUMENTS = (
    *("--card", "datasets/cats/dataset.yaml", "--source", "datasets/cats/source"),
    *("--out", "datasets/cats/raw", "--report", "datasets/cats/reports/ingest.json"),
)


class Project:
    """A project of one dataset, `cats`, in the current folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dataset = root / "datasets" / "cats"
        self.raw = self.dataset / "raw"
        (self.dataset / "source").mkdir(parents=True)
        (root / "params.yaml").write_text("ingest: {max_attempts: 3, timeout_s: 1.0}\n")

    def card(self, *sources: dict[str, object]) -> None:
        """Write the card; JSON is YAML."""
        told = {
            "title": "t",
            "licence": "MIT",
            "origin": "o",
            "task": "classification",
            "sources": list(sources),
            "samples": {"layout": "folders"},
        }
        (self.dataset / "dataset.yaml").write_text(json.dumps(told))

    def add(self, name: str, data: bytes = b"1") -> Path:
        path = self.dataset / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def ingest(self) -> dict[str, Any]:
        stage.execute(ingest, "ingest", ARGUMENTS)
        report: dict[str, Any] = json.loads((self.dataset / "reports/ingest.json").read_bytes())
        return report

    def content(self) -> dict[str, bytes]:
        files = [path for path in self.raw.rglob("*") if path.is_file()]
        return {path.relative_to(self.raw).as_posix(): path.read_bytes() for path in files}

    def complaint(self) -> HeadraceError:
        with pytest.raises(HeadraceError) as caught:
            self.ingest()
        return caught.value


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", "2")
    monkeypatch.setattr(remote, "_FIRST_PAUSE_S", 0.01)
    return Project(tmp_path)


@pytest.fixture
def web() -> Iterator[Web]:
    with serve_web() as server:
        yield server


def bodies(web: Web) -> list[str]:
    return [request for request in web.requests if request.startswith("GET")]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_local_files_are_copied_as_they_are(project: Project) -> None:
    files = {"a.zip": DATA, "cat/\u00e9 1.JPG": b"1", ".hidden": b"", "cat/e\u0301": b"2"}
    for name, data in files.items():
        project.add(f"source/{name}", data)
    project.card({"url": "source"})
    project.ingest()
    assert project.content() == files
    assert (project.raw / "a.zip").stat().st_nlink == 1
    project.add("source/a.zip", b"later")
    assert project.content()["a.zip"] == DATA


def test_report_counts_and_names_the_content(project: Project) -> None:
    project.add("source/b", b"22")
    project.add("source/a/1", b"1")
    project.add("x.zip", DATA)
    project.card({"url": "source"}, {"url": "x.zip", "sha256": sha256(DATA), "num_bytes": 300_000})
    # What `sha256sum` prints, in the order of the names.
    listing = f"{sha256(b'1')}  a/1\n{sha256(b'22')}  b\n"
    assert project.ingest() == {
        "num_files": 3,
        "num_bytes": 300_003,
        "sources": {
            "source": {
                "num_files": 2,
                "num_bytes": 3,
                "num_unpacked": 0,
                "sha256": sha256(listing.encode()),
            },
            "x.zip": {
                "num_files": 1,
                "num_bytes": 300_000,
                "num_unpacked": 0,
                "sha256": sha256(DATA),
            },
        },
    }


def test_what_left_the_source_leaves_raw(project: Project) -> None:
    project.add("source/a")
    gone = project.add("source/b")
    project.card({"url": "source"})
    project.ingest()
    gone.unlink()
    project.ingest()
    assert project.content() == {"a": b"1"}


def test_web_bucket_and_folder_come_together(
    project: Project, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files["x/cats.zip"] = DATA
    project.add("source/loose.jpg")
    with serve_s3() as address:
        point_at_s3(address, monkeypatch)
        client = fsspec.filesystem("s3", skip_instance_cache=True)
        client.mkdir("box")
        client.pipe({f"box/set/{index}.jpg": b"%d" % index for index in range(20)})
        project.card(
            {"url": f"{web.url}/x/cats.zip"},
            {"url": "s3://box/set", "to": "set"},
            {"url": "source"},
        )
        report = project.ingest()
    assert report["num_files"] == 22
    content = project.content()
    assert content.pop("cats.zip") == DATA
    assert content.pop("loose.jpg") == b"1"
    assert content == {f"set/{index}.jpg": b"%d" % index for index in range(20)}


def test_faulty_server_makes_no_difference(project: Project, web: Web) -> None:
    web.files = {f"{index}.zip": DATA for index in range(6)}
    web.faults = ["500", "", "cut", "", "stall", ""] * 2
    (project.root / "params.yaml").write_text("ingest: {max_attempts: 9, timeout_s: 1.0}\n")
    for_each: list[dict[str, object]] = [{"url": f"{web.url}/{name}"} for name in web.files]
    project.card(*for_each)
    project.ingest()
    assert project.content() == web.files


def test_new_source_does_not_bring_the_others_again(project: Project, web: Web) -> None:
    web.files = {"a.zip": DATA, "b.zip": DATA[::-1]}
    project.card({"url": f"{web.url}/a.zip"})
    first = project.ingest()
    project.card({"url": f"{web.url}/a.zip"}, {"url": f"{web.url}/b.zip"})
    web.requests.clear()
    second = project.ingest()
    assert [request.split()[1] for request in bodies(web)] == ["b.zip"]
    assert project.content() == web.files
    assert first["sources"][f"{web.url}/a.zip"] == second["sources"][f"{web.url}/a.zip"]


def test_changed_remote_file_is_brought_again(project: Project, web: Web) -> None:
    web.files["a.zip"] = DATA
    project.card({"url": f"{web.url}/a.zip"})
    project.ingest()
    web.files["a.zip"] = DATA[::-1]
    project.ingest()
    assert project.content() == web.files


def test_downloads_are_let_go_once_raw_holds_them(project: Project, web: Web) -> None:
    web.files["a.zip"] = DATA
    project.card({"url": f"{web.url}/a.zip"})
    project.ingest()
    left = [path.name for path in (project.root / ".state/ingest/cats").iterdir()]
    assert left == ["ledger.json"]
    assert (project.raw / "a.zip").stat().st_nlink == 1


@pytest.mark.parametrize("ledger", ["", "[]", '{"a": 1}', '{"a": {"sha256": 1}}'])
def test_damaged_ledger_is_as_good_as_none(project: Project, web: Web, ledger: str) -> None:
    web.files["a.zip"] = DATA
    project.card({"url": f"{web.url}/a.zip"})
    project.ingest()
    (project.root / ".state/ingest/cats/ledger.json").write_text(ledger)
    project.ingest()
    assert project.content() == web.files


def test_old_raw_stays_when_a_source_is_gone(project: Project, web: Web) -> None:
    web.files = {"a.zip": DATA, "b.zip": DATA}
    project.card({"url": f"{web.url}/a.zip"}, {"url": f"{web.url}/b.zip"})
    project.ingest()
    before = project.content()
    del web.files["b.zip"]
    fault = project.complaint()
    assert fault.what == "The source is not there."
    assert fault.where == f"{web.url}/b.zip"
    assert project.content() == before
    assert [path.name for path in project.dataset.glob(".tmp-*")] == []


def test_old_raw_stays_when_a_source_is_another(project: Project) -> None:
    project.add("source/x.zip", b"old")
    project.card({"url": "source/x.zip", "sha256": sha256(b"old")})
    project.ingest()
    project.add("source/x.zip", b"new")
    fault = project.complaint()
    assert fault.expected == f"sha256: {sha256(b'old')}"
    assert fault.found == f"sha256: {sha256(b'new')}"
    assert project.content() == {"x.zip": b"old"}


@pytest.mark.parametrize(
    ("stated", "told"), [({"num_bytes": 4}, "num_bytes: 3"), ({"sha256": "0" * 64}, "sha256: ")]
)
def test_folder_that_is_not_what_the_card_says_is_refused(
    project: Project, stated: dict[str, object], told: str
) -> None:
    project.add("source/a", b"333")
    project.card({"url": "source", **stated})
    fault = project.complaint()
    assert fault.what == "The source is not what the card says."
    assert told in str(fault.found)
    assert not project.raw.exists()


def test_source_that_changes_while_it_is_read_is_refused(
    project: Project, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files = {"a.zip": DATA}
    project.card({"url": f"{web.url}/a.zip"})
    web.pause_s = 0.1
    change = threading.Timer(0.4, lambda: web.files.update({"a.zip": DATA[::-1]}))
    monkeypatch.setattr(remote, "_PIECE_BYTES", 50_000)
    change.start()
    try:
        assert "changed while it was read" in project.complaint().what
    finally:
        change.join()
    assert not project.raw.exists()
    web.pause_s = 0.0
    project.ingest()
    assert project.content() == web.files


def test_compressed_tar_is_readable_in_place_afterwards(project: Project) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        info = tarfile.TarInfo("cat/1.jpg")
        info.size = 3
        tar.addfile(info, io.BytesIO(b"cat"))
    path = project.dataset / "source" / "cats.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        packed.addfile(info, io.BytesIO(b"cat"))
    project.card({"url": "source", "num_bytes": path.stat().st_size})
    report = project.ingest()
    assert report["sources"]["source"]["num_unpacked"] == 1
    assert project.content() == {"cats.tar": plain.getvalue()}


def test_local_source_that_nobody_watches_is_refused_before_any_work(project: Project) -> None:
    project.add("elsewhere/a")
    project.card({"url": "elsewhere"})
    fault = project.complaint()
    assert fault.where == "datasets/cats/dataset.yaml:sources.0.url"
    assert "datasets/cats/source" in str(fault.fix)


def test_many_small_files_come_in_groups(project: Project) -> None:
    for index in range(600):
        project.add(f"source/{index % 7}/{index}.jpg", b"%d" % index)
    project.card({"url": "source"})
    assert project.ingest()["num_files"] == 600
    assert project.content()["3/500.jpg"] == b"500"


def test_two_runs_share_the_downloads_one_after_the_other(project: Project, web: Web) -> None:
    web.files["a.zip"] = DATA
    project.card({"url": f"{web.url}/a.zip"})
    inside = []

    class Log:
        def info(self, message: str) -> None:
            inside.append(message)

    class Job:
        log = Log()

    first: Any = Job()
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with ingest._state(first, "cats"):
            entered.set()
            leave.wait(10)

    other = threading.Thread(target=hold)
    other.start()
    entered.wait(10)
    threading.Timer(0.3, leave.set).start()
    with ingest._state(first, "cats"):
        assert leave.is_set()
    other.join()
    assert inside == ["another run downloads this dataset; waiting for it"]


@pytest.mark.parametrize("params", ["max_attempts: 0", "timeout_s: fast", "max_attemps: 3"])
def test_wrong_params_are_refused_before_any_work(project: Project, params: str) -> None:
    (project.root / "params.yaml").write_text(f"ingest: {{{params}}}\n")
    project.add("source/a")
    project.card({"url": "source"})
    assert params.partition(":")[0] in str(project.complaint())
    assert not project.raw.exists()


def dvc(*command: str) -> str:
    """What a DVC command says."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # What DVC remembers of files that it has hashed must not outlive the test.
    own = {"PATH": path, "PYTHONPATH": str(ROOT), "DVC_SITE_CACHE_DIR": str(Path.cwd() / "site")}
    done = subprocess.run(
        ["dvc", *command],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.slow
def test_dvc_notices_a_new_file_and_a_failed_run_leaves_the_old_raw(project: Project) -> None:
    block = YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]["ingest"]
    block["deps"] = [path for path in block["deps"] if path.startswith("datasets/")]
    (project.root / "dvc.yaml").write_text(json.dumps({"stages": {"ingest": block}}))
    (project.root / "params.yaml").write_text(
        "dataset: cats\ningest: {max_attempts: 3, timeout_s: 1.0}\n"
    )
    dvc("init", "--no-scm")
    project.add("source/a")
    project.card({"url": "source"})
    assert "Running stage 'ingest'" in dvc("repro")
    assert "Running stage" not in dvc("repro")
    project.add("source/b", b"22")
    assert "Running stage 'ingest'" in dvc("repro")
    assert project.content() == {"a": b"1", "b": b"22"}
    project.card({"url": "source"}, {"url": "http://127.0.0.1:9/c.zip"})
    assert "it was tried 3 times" in dvc("repro")
    assert project.content() == {"a": b"1", "b": b"22"}
    project.card({"url": "source"})
    assert "Running stage" not in dvc("repro")


def wait_for(condition: Any, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


@pytest.mark.slow
def test_killed_download_goes_on_where_it_was(project: Project, web: Web) -> None:
    big = random.Random(1).randbytes(40 << 20)
    web.files = {"done.zip": DATA, "big.zip": big}
    web.pause_s = 0.005  # 640 slices: some seconds
    project.card({"url": f"{web.url}/done.zip"}, {"url": f"{web.url}/big.zip"})
    state = project.root / ".state/ingest/cats"

    def far_enough() -> bool:
        sizes = [path.stat().st_size for path in state.glob("*.part")]
        return max(sizes, default=0) >= 16 << 20 and len(list(state.glob("*.done"))) == 1

    with subprocess.Popen(
        [sys.executable, "-m", "pipelines.ingest", *ARGUMENTS],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    ) as process:
        wait_for(far_enough)
        process.send_signal(signal.SIGKILL)
    web.pause_s = 0.0
    web.requests.clear()
    project.ingest()
    assert project.content() == web.files
    asked = [request for request in web.requests if "bytes" in request]
    assert asked
    assert all("big.zip" in request for request in asked)
    assert web.num_bytes_asked <= 24 << 20
