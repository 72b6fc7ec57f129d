"""Verbs for people: `python -m trainers VERB ...`; see `pipelines.core.verbs`."""

import sys

from pipelines.core import process, verbs
from trainers import commands

if __name__ == "__main__":
    process.configure_logging()
    sys.exit(verbs.run(commands, sys.argv[1:]))
