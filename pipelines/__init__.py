"""Code that writes data: one module a stage; `core`, what any stage imports; `commands`, for people.

Never imports torch or `trainers` (import-linter holds it): data needs no training stack in memory.
"""
