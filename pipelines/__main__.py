"""Verbs for people: `python -m pipelines VERB ...`; see `pipelines.core.verbs`."""

import sys

from pipelines import commands
from pipelines.core import verbs

if __name__ == "__main__":
    sys.exit(verbs.run(commands, sys.argv[1:]))
