"""Finds the rank that all others wait for: dead, stopped, or no longer scheduled.

A collective whose partner is gone waits for minutes, and says nothing of whom it waits for. So each
rank gives a sign of life every second, from a thread of its own, and watches the next rank's. One
that has given none for `SILENT_BEATS` is told to all, with the place where it was last; each of
them says where it waits itself, and ends. A process on the same machine that is silent but there is
killed, so that it does not hold its GPU. What is lost is what came after the newest checkpoint.

A rank whose main thread alone is stuck still gives signs of life: that is left to the timeout of
collectives.

Costs a few messages a second and rank, to the store that the launcher keeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self

import psutil  # type: ignore[import-untyped]
import torch.distributed as dist

from pipelines.core.errors import HeadraceError

SILENT_BEATS: Final = 20
_BEAT_S: Final = 1.0
_GRACE_S: Final = 5.0  # to end by itself, for a rank that meets the failure of another
_VERDICT: Final = "verdict"

_place = "the start"


def at(place: str) -> None:
    """Note where this process is, such as "step 3, the sum of gradients", for others to read."""
    global _place  # noqa: PLW0603 - of the process, as its main thread is
    _place = place


class Watchdog:
    """Watches over the ranks while it is entered.

    Args:
        store: that all ranks share.
        rank: of this process.
        world_size: of all; with one rank there is nothing to watch.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int) -> None:
        self._store: dist.Store | None = None
        if world_size > 1:
            own = store.clone()  # type: ignore[attr-defined]  # a connection of the thread's own
            self._store = dist.PrefixStore("watchdog", own)
        self._rank = rank
        self._next = (rank + 1) % world_size
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="headrace-watchdog", daemon=True)
        process = psutil.Process()
        self._who = [socket.gethostname(), process.pid, process.create_time()]

    def __enter__(self) -> Self:
        if self._store:
            self._store.set_timeout(timedelta(seconds=SILENT_BEATS * _BEAT_S))
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._store:
            return
        if is_about_another_rank(error):
            # Meanwhile the thread hears which rank that was, and ends the process. The launcher,
            # which has heard of a killed rank at once, would end it before.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._ended.wait((SILENT_BEATS + 5) * _BEAT_S)
        self._ended.set()
        self._thread.join()
        if error is None or isinstance(error, SystemExit):
            self._store.set(str(self._rank), json.dumps({"has_ended": True}))
        else:
            self._store.set(_VERDICT, json.dumps({"rank": self._rank, "has_failed": True}))

    def _watch(self) -> None:
        number, seen, num_silent = 0, "", 0
        try:
            while not self._ended.wait(_BEAT_S):
                number += 1
                self._beat(number)
                beat = self._read(str(self._next))
                # Counted in own beats, not by the clock: a machine that slept has missed both.
                num_silent = num_silent + 1 if beat == seen else 0
                seen = beat
                if num_silent >= SILENT_BEATS and "has_ended" not in beat:
                    self._accuse(json.loads(beat or "{}"))
                if verdict := self._read(_VERDICT):
                    self._obey(json.loads(verdict))
        except (RuntimeError, OSError) as error:  # of the store
            if not self._ended.is_set():
                self._die(f"the store, which the launcher or rank 0 keeps, is gone: {error}")

    def _beat(self, number: int) -> None:
        assert self._store is not None
        beat = {"number": number, "place": _place, "who": self._who}
        self._store.set(str(self._rank), json.dumps(beat))

    def _read(self, key: str) -> str:
        """The value of `key`, empty where there is none."""
        assert self._store is not None
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _accuse(self, beat: dict[str, Any]) -> None:
        assert self._store is not None
        told = str(_silent(self._next, beat.get("place", "none at all"), self._rank))
        self._store.set(_VERDICT, json.dumps({"rank": self._next, "has_failed": False}))
        sys.stderr.write(f"\nERROR: {told}\n")
        _kill(*beat.get("who", ("", 0, 0)))

    def _obey(self, verdict: dict[str, Any]) -> None:
        if verdict["has_failed"]:
            # It tells itself why; this one ends by itself unless it waits for the other.
            if not self._ended.wait(_GRACE_S):
                self._die(f"rank {verdict['rank']} has failed")
        else:
            self._die(f"rank {verdict['rank']} no longer answers")

    def _die(self, why: str) -> None:
        sys.stderr.write(f"rank {self._rank} ends at {_place}: {why}\n")
        sys.stderr.flush()
        os._exit(1)  # the main thread waits in a collective, from which nothing wakes it


def _silent(rank: int, place: str, by: int) -> HeadraceError:
    return HeadraceError(
        f"Rank {rank} no longer answers: it is dead or stopped, and all others wait for it.",
        where=f"{_place} (rank {by})",
        expected="a sign of life every second",
        found=f"none for {SILENT_BEATS * _BEAT_S:g} s; the last was at {place}",
        fix="see the log of that rank and of its machine (out of memory?), then run the same "
        "command again: it goes on from the newest checkpoint",
    )


def _kill(host: str, pid: int, created: float) -> None:
    """End the silent process where it is on this machine, and is still the one that was silent."""
    if host != socket.gethostname():
        return
    with contextlib.suppress(psutil.Error, OSError):
        if psutil.Process(pid).create_time() == created:
            os.kill(pid, signal.SIGKILL)


def is_about_another_rank(error: BaseException | None) -> bool:
    """Whether a collective failed for what another rank did."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and ("gloo" in str(error) or "NCCL" in str(error))
    )
