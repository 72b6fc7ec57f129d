"""Measures the reader side by side with its peers and with the memory of this machine.

    python -m benchmarks.reader [--workloads 96x96x3 ...] [--rounds 7] [--data FOLDER] [--json FILE]

Every contender is a process that waits until it is its turn. A round lets each read for about as
long; the order of turns differs from round to round. Reported are medians over the rounds, and the
median of the ratios to the ceiling within a round, which a shared machine disturbs least. Data
are in the page cache, and every contender has seen all of them once before it is measured.

`make bench-reader` installs the peers into .venv-bench first; without them, only ours are measured.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.reader import figures, storage
from benchmarks.reader.contenders import BATCH_SIZE, PEERS, settings
from benchmarks.reader.data import WORKLOADS, Workload, write_decoded
from benchmarks.reader.ours import OURS

ROOT = Path(__file__).parents[2]
PEERS_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
_ROUND_S = 1.0
_SLOW_S = 60.0  # For one pass over the data, before a contender is measured.


@dataclass
class Result:
    """What one contender did on one workload."""

    workload: str
    contender: str
    settings: str
    first_batch_s: float
    samples_per_s: list[float] = field(default_factory=list)
    """Of each round."""
    ratios: list[float] = field(default_factory=list)
    """To the ceiling, within each round."""

    @property
    def speed(self) -> float:
        """Median samples/s."""
        return statistics.median(self.samples_per_s)

    @property
    def ratio(self) -> float:
        """Median share of the ceiling."""
        return statistics.median(self.ratios)


class Turn:
    """A contender's process."""

    def __init__(self, name: str, workload: Workload, decoded: Path) -> None:
        python = str(PEERS_PYTHON) if name in PEERS else sys.executable
        folder = decoded.parent / name.replace(" ", "-").replace(",", "")
        shape = ",".join(map(str, workload.shape))
        arguments = (name, decoded, folder, shape, workload.num_samples)
        command = [python, "-m", "benchmarks.reader.worker", *map(str, arguments)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.first_batch_s = self._answer()

    def read(self, num_batches: int) -> float:
        """Samples/s over so many batches."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{num_batches}\n")
        self._process.stdin.flush()
        return num_batches * BATCH_SIZE / self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended; run it by hand to see why")
        return float(line)


def measure(workload: Workload, folder: Path, names: list[str], num_rounds: int) -> list[Result]:
    """The contenders in interleaved rounds; those that fail are left out, and said so."""
    decoded = write_decoded(folder, workload)
    turns: dict[str, Turn] = {}
    try:
        for name in names:
            with contextlib.suppress(RuntimeError):
                Turn(name, workload, decoded).close()  # Writes the data in its own form, once.
                turns[name] = Turn(name, workload, decoded)
                continue
            sys.stdout.write(f"{name} failed on {workload.name} and is left out\n")
        results, batches = _prepare(turns, workload)
        rng = random.Random(0)  # noqa: S311 - an order of turns is no secret
        for _ in range(num_rounds):
            speeds = {}
            for name in rng.sample(list(turns), len(turns)):
                speeds[name] = turns[name].read(batches[name])
                results[name].samples_per_s.append(speeds[name])
            for name, speed in speeds.items():
                results[name].ratios.append(speed / speeds["ceiling"])
        return list(results.values())
    finally:
        for turn in turns.values():
            turn.close()


def _prepare(
    turns: dict[str, Turn], workload: Workload
) -> tuple[dict[str, Result], dict[str, int]]:
    """Let each see all data, and find how many batches it reads in a round."""
    results, batches = {}, {}
    for name, turn in turns.items():
        speed = turn.read(20)
        whole = min(workload.num_samples, _SLOW_S * speed) // BATCH_SIZE
        speed = turn.read(max(20, int(whole)))
        batches[name] = max(20, int(_ROUND_S * speed / BATCH_SIZE))
        told = settings({**PEERS, **OURS}[name])
        results[name] = Result(workload.name, name, told, turn.first_batch_s)
    return results, batches


def table(results: list[Result]) -> str:
    """A table for people."""
    lines = [f"{'':26}{'samples/s':>12}{'of ceiling':>12}{'first batch':>13}"]
    lines += [
        f"{one.contender:26}{one.speed:12,.0f}{one.ratio:12.3f}{one.first_batch_s:11.3f} s"
        for one in sorted(results, key=lambda one: -one.speed)
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reader", description=__doc__)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", type=Path, default=ROOT / ".memo" / "bench")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    names = [*OURS, *(PEERS if PEERS_PYTHON.exists() else [])]
    measured: list[Result] = []
    for name in arguments.workloads:
        results = measure(WORKLOADS[name], arguments.data, names, arguments.rounds)
        sys.stdout.write(f"\n{name} uint8, batch {BATCH_SIZE}, shuffled, warm\n{table(results)}\n")
        sys.stdout.flush()
        measured += results
    decoded = write_decoded(arguments.data, WORKLOADS["96x96x3"])
    others = figures.measure(decoded, arguments.data) | storage.measure(decoded, arguments.data)
    sys.stdout.write(f"\n{figures.table(others)}\n")
    if arguments.json:
        rows = [asdict(one) | {"median": one.speed, "ratio": one.ratio} for one in measured]
        text = json.dumps({"speed": rows, "figures": others}, indent=1)
        arguments.json.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
