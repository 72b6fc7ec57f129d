"""fsspec's drivers: the one that a URL needs, with limits of time, or the package that it lacks.

A server that answers nothing for `timeout_s` counts as dead (http, https and s3; other drivers have
limits of their own). Credentials come from the environment or fsspec's own configuration
(FSSPEC_<PROTOCOL>, ~/.config/fsspec), never from here.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

import fsspec
from fsspec.registry import known_implementations

from pipelines.core.errors import HeadraceError, did_you_mean


def open_url(url: str, timeout_s: float) -> tuple[Any, str]:
    """The file system of a URL, and its name for what the URL means.

    Args:
        url: `protocol://...`, or several chained by `::`.
        timeout_s: seconds without a byte after which a connection counts as dead.

    Raises:
        HeadraceError: an unknown protocol, a missing driver, or one that refuses the URL.
    """
    protocols = [re.split("://", part)[0] for part in url.split("::")]
    unknown = [name for name in protocols if name not in fsspec.available_protocols()]
    if unknown:
        near = did_you_mean(unknown[0], fsspec.available_protocols())
        raise HeadraceError(f"fsspec knows no protocol {unknown[0]!r}.{near}", where=url)
    try:
        options = {name: _options(name, timeout_s) for name in protocols}
        first = options.pop(protocols[0])
        filesystem, path = fsspec.core.url_to_fs(url, **first, **options)
    except ImportError as error:
        raise _no_driver(url, protocols, error) from error
    except Exception as error:  # What a driver raises is its own to choose.
        raise HeadraceError(
            "The driver does not take this URL.",
            where=url,
            found=f"{type(error).__name__}: {error}",
        ) from error
    if hasattr(filesystem, "retries"):
        filesystem.retries = 1  # Tries inside of tries would multiply.
    return filesystem, path


def _options(protocol: str, timeout_s: float) -> dict[str, Any]:
    """Limits of time for the drivers that take them, besides what fsspec's configuration says."""
    if protocol in ("http", "https"):
        import aiohttp  # noqa: PLC0415 - only who needs it pays for it

        # Without a word, fsspec's http driver gives a download five minutes in all.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
        # `identity`: bytes that are compressed on the way have another length than the file.
        ours: dict[str, Any] = {
            "timeout": timeout,
            "trust_env": True,
            "headers": {"Accept-Encoding": "identity"},
        }
        return {"client_kwargs": _configured(("http", "https"), "client_kwargs") | ours}
    if protocol in ("s3", "s3a"):
        limits = {"connect_timeout": timeout_s, "read_timeout": timeout_s}
        ours = {"retries": {"max_attempts": 0}} | limits
        return {"config_kwargs": _configured(("s3", "s3a"), "config_kwargs") | ours}
    return {}


def _configured(protocols: tuple[str, ...], key: str) -> dict[str, Any]:
    # fsspec lets an argument replace the configured value as a whole; here they add up.
    return {
        name: value
        for protocol in protocols
        for name, value in fsspec.config.conf.get(protocol, {}).get(key, {}).items()
    }


def _no_driver(url: str, protocols: list[str], error: ImportError) -> HeadraceError:
    protocol = next((name for name in protocols if not _has_driver(name)), protocols[0])
    package = known_implementations.get(protocol, {}).get("class", protocol).split(".")[0]
    if package == "fsspec":  # Its own class, which needs another package: an extra names it.
        extras = importlib.metadata.metadata("fsspec").get_all("Provides-Extra") or []
        package = f"'fsspec[{protocol}]'" if protocol in extras else "'fsspec[full]'"
    return HeadraceError(
        f"The driver for {protocol}:// is not installed.",
        where=url,
        found=str(error),
        fix=f".venv/bin/pip install {package}",
    )


def _has_driver(protocol: str) -> bool:
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError:
        return False
    return True
