"""One contender in a process of its own, told by lines on standard input how much to read.

    python -m benchmarks.reader.worker NAME DECODED FOLDER HEIGHT,WIDTH,CHANNELS NUM_SAMPLES

Its first line says the seconds from the first use of the reader to its first batch; then it answers
each line `N` by the seconds that N batches took. What libraries print goes to standard error.
"""

import contextlib
import sys
import time
from pathlib import Path

from benchmarks.reader.contenders import PEERS, Contender, Data


def contender(name: str) -> Contender:
    """The one of that name; ours are imported only where they are asked for."""
    if name in PEERS:
        return PEERS[name]
    from benchmarks.reader.ours import OURS  # noqa: PLC0415 - not there in .venv-bench

    return OURS[name]


def main(name: str, decoded: str, folder: str, shape: str, num_samples: str) -> None:
    """Serve until standard input ends."""
    height, width, channels = map(int, shape.split(","))
    data = Data(Path(decoded), (height, width, channels), int(num_samples))
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        make = contender(name)
        started = time.perf_counter()
        stream = make(data, Path(folder))
        num_batches = 1
        while True:
            for _ in range(num_batches):
                next(stream)
            answers.write(f"{time.perf_counter() - started}\n")
            answers.flush()
            line = sys.stdin.readline()
            if not line:
                return
            num_batches = int(line)
            started = time.perf_counter()


if __name__ == "__main__":
    main(*sys.argv[1:])
