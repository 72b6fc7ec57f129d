"""The verbs behind `python -m trainers VERB`, one module each with `main(argv) -> exit status`."""
