"""Drivers: the file system of a URL, or what to do to have one."""

import sys

import fsspec
import pytest
from fsspec.registry import _registry

from pipelines.core.errors import HeadraceError
from pipelines.core.sources.drivers import open_url


def complaint(url: str) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        open_url(url, 1.0)
    return caught.value


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("gs://bucket/a.zip", "gcsfs", "gcsfs"),
        ("az://box/a.zip", "adlfs", "adlfs"),
        ("sftp://host/a.zip", "paramiko", "'fsspec[sftp]'"),
        ("zip://a.csv::gs://bucket/a.zip", "gcsfs", "gcsfs"),
    ],
)
def test_missing_driver_is_named_with_the_command_that_installs_it(
    url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # As if it were not installed.
    monkeypatch.delitem(sys.modules, "fsspec.implementations.sftp", raising=False)
    for protocol in ("gs", "gcs", "az", "sftp"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    fault = complaint(url)
    assert "is not installed" in fault.what
    assert fault.fix == f".venv/bin/pip install {package}"


def test_unknown_protocol_is_told_with_the_nearest_one() -> None:
    assert complaint("htpps://host/a.zip").what == (
        "fsspec knows no protocol 'htpps'. Did you mean 'https'?"
    )


def test_time_limits_reach_the_drivers() -> None:
    http, path = open_url("http://127.0.0.1/a b.zip", 7.0)
    timeout = http.client_kwargs["timeout"]
    assert (timeout.total, timeout.sock_connect, timeout.sock_read) == (None, 7.0, 7.0)
    assert path == "http://127.0.0.1/a b.zip"
    s3, path = open_url("s3://bucket/a.zip", 7.0)
    assert s3.config_kwargs["read_timeout"] == 7.0
    assert s3.retries == 1
    assert path == "bucket/a.zip"


def test_users_own_configuration_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fsspec.config.conf, "http", {"client_kwargs": {"max_line_size": 9}})
    http, _ = open_url("http://127.0.0.1/x", 7.0)
    assert http.client_kwargs["max_line_size"] == 9
    assert http.client_kwargs["timeout"].sock_read == 7.0
