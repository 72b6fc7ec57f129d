"""How a run is doing, for people: a bar on a terminal, a line every few seconds elsewhere.

Only the log sees clocks; nothing here reaches an out.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10.0

log = logging.getLogger("headrace.train")


class Progress:
    """Counts steps, samples and seconds of waiting for data.

    Args:
        num_steps: of the whole run.
        first_step: where it resumes.
        is_shown: on one rank only.
    """

    def __init__(self, num_steps: int, first_step: int, *, is_shown: bool) -> None:
        self._num_steps = num_steps
        self._step = self._first = first_step
        self._num_samples = 0
        self._wait_s = 0.0
        self._started = self._told = time.monotonic()
        self._is_shown = is_shown
        on_terminal = is_shown and sys.stderr.isatty()
        self._bar = tqdm(
            total=num_steps, initial=first_step, unit="step", disable=not on_terminal, leave=False
        )

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent inside is waiting for data."""
        began = time.monotonic()
        yield
        self._wait_s += time.monotonic() - began

    def advance(self, num_samples: int, loss: float) -> None:
        """One step was made over `num_samples` samples."""
        self._step += 1
        self._num_samples += num_samples
        if not self._bar.disable:
            self._bar.set_postfix_str(f"loss {loss:.4f}, {self._pace()}", refresh=False)
            self._bar.update()
        elif self._is_shown and time.monotonic() - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            log.info("step %d/%d: loss %.4f, %s", self._step, self._num_steps, loss, self._pace())

    def go_back(self, step: int) -> None:
        """The run goes on from `step`, which it has made before."""
        self._step = step
        self._bar.n = step
        self._bar.refresh()

    def end_epoch(self, epoch: int, num_epochs: int, metrics: dict[str, float]) -> None:
        """Tell the metrics of an epoch, above the bar where there is one."""
        if self._is_shown:
            figures = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            with tqdm.external_write_mode():
                log.info("epoch %d/%d: %s (%s)", epoch, num_epochs, figures, self._pace())

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _pace(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        left_s = seconds / max(1, self._step - self._first) * (self._num_steps - self._step)
        minutes, left = divmod(round(left_s), 60)
        return (
            f"{self._num_samples / seconds:,.0f} samples/s, "
            f"data wait {self._wait_s / seconds:.0%}, {minutes}:{left:02d} left"
        )
