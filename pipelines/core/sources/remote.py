"""Remote files through fsspec, wrapped once: list them, and download them to the end.

Every read is tried several times, with growing and random pauses, from where it stopped.

Downloads go through in pieces of 8 MiB, so memory is bounded; a piece lost is a piece read again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import tenacity

from pipelines.core.errors import HeadraceError
from pipelines.core.sources.drivers import open_url

T = TypeVar("T")

_PIECE_BYTES = 8 << 20
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0

_TEMPORARY_STATUS = {408, 425, 429}
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_MISUSE = (ImportError, NotImplementedError, TypeError, ValueError)

# In the order of how much they say: a checksum, a name of this version, a time.
_VERSION_KEYS = (
    ("ETag", "etag", "md5Hash", "md5", "content_md5", "Content-MD5", "Digest", "checksum", "sha"),
    ("VersionId", "version_id", "generation"),
    ("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "modify", "modified"),
)


@dataclass(frozen=True)
class Patience:
    """When to give up."""

    max_attempts: int
    """How often a read is tried in all."""
    timeout_s: float
    """Seconds without a byte after which a connection counts as dead."""


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be downloaded."""

    url: str
    """What was listed: the file itself, or the folder that holds it."""
    path: str
    """The driver's name for the file."""
    relative: str
    """Path below the listed folder; empty where the file itself was listed."""
    num_bytes: int | None
    """None: the server does not say."""
    version: str | None
    """Checksums and times that the server gives; None: nothing to tell versions apart by."""


def is_remote(url: str) -> bool:
    """Whether fsspec opens it, rather than it being a path of this machine."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*(://|::)", url) is not None and not _local_path(url)


def local_path(url: str, folder: Path) -> Path:
    """The path of a source that is not remote; relative ones start at `folder`."""
    return folder / Path(_local_path(url) or url).expanduser()


def _local_path(url: str) -> str | None:
    split = urlsplit(url)
    return unquote(split.path) if split.scheme in ("file", "local") and "::" not in url else None


def last_part(url: str) -> str:
    """The name of a file after its URL: `cats.zip` for `https://host/a/cats.zip?raw=1`."""
    first = url.split("::", maxsplit=1)[0]
    if first.startswith(("http://", "https://")):
        first = unquote(urlsplit(first).path)
    return first.rstrip("/").rpartition("/")[2]


def list_url(url: str, patience: Patience) -> list[RemoteFile]:
    """The file at a URL, or the files below the folder that it is, sorted by path.

    Over http and https a URL is always a file.

    Raises:
        HeadraceError: nothing is there, no access, no driver, or no answer.
    """
    filesystem, path = open_url(url, patience.timeout_s)

    def look() -> list[RemoteFile]:
        filesystem.invalidate_cache()
        info = filesystem.info(path)
        if info["type"] != "directory":
            return [_remote_file(url, path, "", info)]
        found = filesystem.find(path, detail=True)
        prefix = path.rstrip("/") + "/"
        return [
            _remote_file(url, name, name.removeprefix(prefix), details)
            for name, details in sorted(found.items())
            if details["type"] == "file" and not name.endswith("/")
        ]

    return _told(url, look, patience)


def _remote_file(url: str, path: str, relative: str, info: Mapping[str, Any]) -> RemoteFile:
    told = [str(next((info[key] for key in keys if info.get(key)), "")) for keys in _VERSION_KEYS]
    size = info.get("size")
    return RemoteFile(url, path, relative, size, "|".join(told) if any(told) else None)


def download(file: RemoteFile, target: Path, patience: Patience) -> None:
    """Append to `target` what it lacks of `file`; an interrupted download goes on where it was.

    Raises:
        HeadraceError: it cannot be read to its end, or is longer than listed.
    """
    filesystem = open_url(file.url, patience.timeout_s)[0]
    with contextlib.closing(_Reader(filesystem, file)) as reader, target.open("ab") as out:
        while piece := _told(file.url, partial(reader.read_at, out.tell()), patience):
            out.write(piece)


class _Reader:
    """Reads a remote file by position; opens it again after every fault."""

    def __init__(self, filesystem: Any, file: RemoteFile) -> None:
        self._filesystem = filesystem
        self._remote = file
        self._file: Any = None
        self._has_ranges = True

    def read_at(self, offset: int) -> bytes:
        """Up to one piece from `offset` on; nothing at the end of the file."""
        size = self._remote.num_bytes
        wanted = _PIECE_BYTES if size is None else min(_PIECE_BYTES, size - offset)
        if wanted <= 0:
            return b""
        try:
            if self._file is None:
                self._file = self._at(offset)
            data: bytes = self._file.read(wanted)
        except ValueError as error:
            if "range requests" not in str(error):
                raise
            # fsspec's http driver learns only now that this server cannot start in the middle.
            self._has_ranges = False
            self.close()
            return self.read_at(offset)
        except BaseException:
            self.close()
            raise
        if not data and size is not None:
            self.close()
            raise ConnectionError(f"the data ended after {offset:,} of {size:,} bytes")
        return data

    def _at(self, offset: int) -> Any:
        options = {"block_size": _PIECE_BYTES} if self._has_ranges else {"block_size": 0}
        file = self._filesystem.open(self._remote.path, "rb", cache_type="none", **options)
        if offset == 0:
            return file
        try:
            file.seek(offset)
        except (ValueError, OSError):  # A stream: what is there already is read again.
            while offset > 0:
                passed = file.read(min(offset, _PIECE_BYTES))
                if not passed:
                    raise ConnectionError("the data ended before the place to go on from") from None
                offset -= len(passed)
        return file

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(Exception):
                file.close()


def _told(url: str, function: Callable[[], T], patience: Patience) -> T:
    """Call `function` until it succeeds; a fault that does not pass is told in words."""
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(patience.max_attempts),
        wait=tenacity.wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S),
        retry=tenacity.retry_if_exception(may_pass),
        reraise=True,
    )
    try:
        return retrying(function)
    except Exception as error:  # What the drivers raise is theirs to choose.
        raise _fault(url, error, patience) from error


def may_pass(error: BaseException) -> bool:
    """Whether the same call may succeed a moment later."""
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        # fsspec's http driver says so of every fault of a HEAD request.
        return may_pass(error.__cause__)
    status = _status(error)
    if status is not None:
        return status >= 500 or status in _TEMPORARY_STATUS
    if isinstance(error, (*_FINAL, *_MISUSE)) or not isinstance(error, Exception):
        return False
    return not re.search("Credential|FileExpired|Certificate", type(error).__name__)


def _status(error: BaseException) -> int | None:
    """The HTTP status that an exception of aiohttp or requests carries."""
    response = getattr(error, "response", None)
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _fault(url: str, error: Exception, patience: Patience) -> HeadraceError:
    root = error
    while isinstance(root, FileNotFoundError) and isinstance(root.__cause__, Exception):
        root = root.__cause__
    status, found = _status(root), f"{type(root).__name__}: {root}".rstrip(": ")
    if isinstance(root, (FileNotFoundError, NotADirectoryError)) or status in (404, 410):
        what = "The source is not there."
        fix = "correct the url in the card, or put the source back"
    elif (
        isinstance(root, PermissionError)
        or status in (401, 403)
        or "Credential" in type(root).__name__
    ):
        what = "The source may not be read."
        fix = (
            "give credentials in the environment, such as AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY; a public bucket needs FSSPEC_S3='{\"anon\": true}'"
        )
    elif may_pass(root):
        what = f"The source cannot be read; it was tried {patience.max_attempts} times."
        fix = "run the command again: what came through is kept"
    else:
        what, fix = "The source cannot be read.", None
    return HeadraceError(what, where=url, found=found, fix=fix)
