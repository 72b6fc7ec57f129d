"""What a stage asks of its process: lines that people read, Linux, and an end with its parent's."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

from pipelines.core.errors import HeadraceError

_PR_SET_PDEATHSIG = 1


def configure_logging() -> None:
    """Plain lines on standard error: `clean: message`."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    handler.addFilter(_without_prefix)
    logger = logging.getLogger("headrace")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _without_prefix(record: logging.LogRecord) -> bool:
    record.name = record.name.removeprefix("headrace.")
    return True


def require_linux() -> None:
    """Refuse other systems in one sentence (DALI has no builds for them)."""
    if not sys.platform.startswith("linux"):
        raise HeadraceError(
            "Headrace runs on Linux only: DALI, which decodes images, has no build for this system."
        )


def die_with_parent() -> None:
    """Have the kernel send SIGTERM when the parent ends.

    Killing `dvc` must not leave a stage that goes on writing.
    """
    parent = os.getppid()
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the call took effect
        os.kill(os.getpid(), signal.SIGTERM)
