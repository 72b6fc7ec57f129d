"""Code that reads a dataset to make weights or to judge them.

Imports `pipelines.core`, and nothing else from there (import-linter holds it).
"""
