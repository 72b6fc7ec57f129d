"""Servers on 127.0.0.1 for tests: an HTTP one with faults on demand, and S3 as moto plays it."""

import http.server
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from hashlib import md5
from pathlib import Path
from typing import Any

import fsspec
import pytest

SLICE_BYTES = 1 << 16


@dataclass
class Web:
    """What an HTTP server serves, how it misbehaves, and what it was asked for."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """Content by name, without the slash in front."""
    faults: list[str] = field(default_factory=list)
    """For the GET requests to come, in order: "500", "cut" (the body ends half-way) or "stall"
    (the body stops half-way until the test ends); "" for none."""
    has_ranges: bool = True
    has_versions: bool = True
    """Whether it sends an ETag and a time."""
    is_sized: bool = True
    """Whether it says how long a file is."""
    pause_s: float = 0.0
    """Between slices of 64 KiB."""
    requests: list[str] = field(default_factory=list)
    """`GET name bytes=0-99`, and so on."""
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def num_bytes_asked(self) -> int:
        """How many bytes all ranges came to."""
        ranges = (re.search(r"bytes=(\d+)-(\d+)", request) for request in self.requests)
        return sum(int(found[2]) - int(found[1]) + 1 for found in ranges if found)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        web: Web = self.server.web
        name = self.path.lstrip("/").partition("?")[0]
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        web.requests.append(f"{self.command} {name} {self.headers.get('Range', '')}".strip())
        fault = web.faults.pop(0) if with_body and web.faults else ""
        if fault == "500" or name not in web.files:
            self.send_response(500 if fault else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = web.files[name]
        start, end = 0, len(data)
        if wanted and web.has_ranges:
            start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        if web.has_versions:
            self.send_header("ETag", f'"{md5(data).hexdigest()}"')
            self.send_header("Last-Modified", formatdate(0, usegmt=True))
        if web.is_sized:
            self.send_header("Content-Length", str(end - start))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if with_body:
            self._send(data[start:end], fault, web)

    def _send(self, body: bytes, fault: str, web: Web) -> None:
        if fault:
            body = body[: len(body) // 2]
        for start in range(0, len(body), SLICE_BYTES):
            self.wfile.write(body[start : start + SLICE_BYTES])
            time.sleep(web.pause_s)
        if fault == "stall":
            web.closing.wait(20)
        if fault:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has
        """Say nothing."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what the tests are about."""


@contextmanager
def serve_web() -> Iterator[Web]:
    """An HTTP server while the context lasts."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        web = Web(url=f"http://127.0.0.1:{server.server_port}")
        server.web = web  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield web
        finally:
            web.closing.set()
            server.shutdown()
            thread.join()


@contextmanager
def serve_s3() -> Iterator[str]:
    """An S3 server (moto) while the context lasts; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/moto-api/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


def point_at_s3(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every S3 client of this process, and of those that it starts, use a server of ours."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # fsspec keeps its clients, and they their address.
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@dataclass
class Proxy:
    """A server in front of another, which spoils GET answers as `Web.faults` says, and others.

    "flip" changes one bit of the body, "slow" sends it at 64 KiB per `pause_s`.
    """

    url: str = ""
    upstream: str = ""
    faults: list[str] = field(default_factory=list)
    """For the GET requests to come, in order; "" for none."""
    always: str = ""
    """For GET requests beyond those."""
    pause_s: float = 0.0
    requests: list[str] = field(default_factory=list)
    """`GET path bytes=0-99`, and so on."""
    closing: threading.Event = field(default_factory=threading.Event)


class _ProxyHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        proxy: Proxy = self.server.proxy
        if not Path(self.path.partition("?")[0]).suffix:  # A listing, or what bucket it is.
            self._forward("")
            return
        proxy.requests.append(f"GET {self.path} {self.headers.get('Range', '')}".strip())
        self._forward(proxy.faults.pop(0) if proxy.faults else proxy.always)

    def do_HEAD(self) -> None:
        self._forward("")

    def _forward(self, fault: str) -> None:
        proxy: Proxy = self.server.proxy
        if fault == "500":
            self._answer(500, {}, b"")
            return
        request = urllib.request.Request(
            proxy.upstream + self.path, headers=dict(self.headers), method=self.command
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, headers, body = answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            status, headers, body = error.code, dict(error.headers), error.read()
        self._answer(status, headers, body, fault)

    def _answer(self, status: int, headers: dict[str, str], body: bytes, fault: str = "") -> None:
        proxy: Proxy = self.server.proxy
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else len(body)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if fault == "flip" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        is_cut = fault in ("cut", "stall")
        body = body[: len(body) // 2] if is_cut else body
        for start in range(0, len(body), SLICE_BYTES):
            self.wfile.write(body[start : start + SLICE_BYTES])
            time.sleep(proxy.pause_s if fault == "slow" else 0)
        if fault == "stall":
            proxy.closing.wait(20)
        self.close_connection = self.close_connection or is_cut

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has
        """Say nothing."""


@contextmanager
def serve_faulty(upstream: str) -> Iterator[Proxy]:
    """A server with faults on demand in front of `upstream`, such as moto, while it lasts."""
    with _Server(("127.0.0.1", 0), _ProxyHandler) as server:
        proxy = Proxy(url=f"http://127.0.0.1:{server.server_port}", upstream=upstream)
        server.proxy = proxy  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing.set()
            server.shutdown()
            thread.join()
