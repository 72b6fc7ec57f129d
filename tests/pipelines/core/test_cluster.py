import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from pipelines.core import cluster
from pipelines.core.cluster import Machine, connect, machine
from pipelines.core.errors import HeadraceError


def test_without_a_file_everything_runs_in_this_process(tmp_path: Path) -> None:
    found = machine(tmp_path / "cluster.yaml")
    assert found.cluster == "threads"
    assert found.workers >= 1
    assert found.num_ranks is None


def test_the_environment_wins_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("cluster: processes\nnum_workers: 7\n")
    monkeypatch.setenv("HEADRACE_NUM_WORKERS", "3")
    monkeypatch.setenv("HEADRACE_NUM_RANKS", "2")
    found = machine(path)
    assert (found.cluster, found.workers, found.num_ranks) == ("processes", 3, 2)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("cluster: process", "found 'process'. Did you mean 'processes'?"),
        ("workers: 2", "workers: unknown key. Did you mean 'num_workers'?"),
        ("num_workers: 0", "num_workers: expected greater than or equal to 1"),
        ("num_workers: two", "num_workers: expected a valid integer, found 'two' (text)"),
    ],
)
def test_a_wrong_setting_is_told_with_what_was_meant(tmp_path: Path, text: str, part: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(HeadraceError) as caught:
        machine(path)
    assert part in str(caught.value)


def test_the_size_of_the_memo_is_set_like_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("memo_max_gib: 100\n")
    assert machine(path).memo_max_gib == 100
    monkeypatch.setenv("HEADRACE_MEMO_MAX_GIB", "0.5")
    assert machine(path).memo_max_gib == 0.5
    monkeypatch.setenv("HEADRACE_MEMO_MAX_GIB", "-1")
    with pytest.raises(HeadraceError, match="memo_max_gib"):
        machine(path)


def test_the_backup_of_checkpoints_is_set_like_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("backup_url: s3://bucket/a\n")
    assert machine(path).backup_url == "s3://bucket/a"
    monkeypatch.setenv("HEADRACE_BACKUP_URL", "memory://b")
    assert machine(path).backup_url == "memory://b"


def test_a_variable_that_is_no_number_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NUM_RANKS", "all")
    with pytest.raises(HeadraceError, match="HEADRACE_NUM_RANKS must be a whole number"):
        machine(Path("no-such-file"))


def test_a_variable_that_nothing_reads_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_NUM_WORKER", "3")
    with pytest.raises(HeadraceError, match="Did you mean 'HEADRACE_NUM_WORKERS'") as caught:
        cluster.machine(tmp_path / "none.yaml")
    assert caught.value.fix == "unset HEADRACE_NUM_WORKER"


def test_the_cache_of_shards_is_set_like_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("cache_folder: /scratch\ncache_max_gib: 2\n")
    monkeypatch.setenv("HEADRACE_CACHE_MAX_GIB", "0.5")
    found = machine(path)
    assert (found.cache_folder, found.cache_max_gib) == ("/scratch", 0.5)
    monkeypatch.setenv("HEADRACE_CACHE_MAX_GIB", "much")
    with pytest.raises(HeadraceError, match="HEADRACE_CACHE_MAX_GIB must be a number"):
        machine(path)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_nothing_listens_beyond_this_machine(kind: str) -> None:
    with connect(Machine(cluster=kind, num_workers=1)):
        this = psutil.Process()
        opened = [
            connection.laddr.ip
            for process in (this, *this.children(recursive=True))
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
    assert set(opened) == {"127.0.0.1"}


def test_a_scheduler_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_CONNECT_TIMEOUT_S", 0.2)
    with (
        pytest.raises(HeadraceError, match="scheduler did not answer"),
        connect(Machine(cluster="tcp://127.0.0.1:9")),
    ):
        pass


@pytest.mark.parametrize(
    ("kind", "package"), [("slurm", "dask-jobqueue"), ("kubernetes", "dask-kubernetes")]
)
def test_a_package_that_is_missing_is_told_with_the_command(
    kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    monkeypatch.setitem(sys.modules, "dask_kubernetes.operator", None)
    with (
        pytest.raises(HeadraceError, match=f"pip install {package}"),
        connect(Machine(cluster=kind)),
    ):
        pass


def double(number: int) -> int:
    return 2 * number


def test_a_running_scheduler_is_joined_by_its_address() -> None:
    from distributed import LocalCluster  # noqa: PLC0415 - as in the module under test

    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as local,
        connect(Machine(cluster=local.scheduler_address)) as client,
    ):
        assert client.submit(double, 3).result() == 6


PROCESSES = """
import os
from pipelines.core.cluster import Machine, connect
if __name__ == "__main__":
    with connect(Machine(cluster="processes", num_workers=2)) as client:
        assert os.getpid() not in client.run(os.getpid).values()
        assert len(client.run(os.getpid)) == 2
"""


def test_processes_are_other_processes(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(PROCESSES)
    done = subprocess.run(
        [sys.executable, tmp_path / "t.py"],
        env={"PYTHONPATH": str(Path.cwd()), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
