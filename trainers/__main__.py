"""Verbs for people: `python -m trainers VERB ...`; see `pipelines.core.verbs`."""

import sys

from pipelines.core import stage, verbs
from trainers import commands

if __name__ == "__main__":
    stage.configure_logging()
    sys.exit(verbs.run(commands, sys.argv[1:]))
