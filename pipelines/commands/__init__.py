"""The verbs behind `python -m pipelines VERB`, one module each with `main(argv) -> exit status`."""
