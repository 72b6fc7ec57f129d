"""Code that writes data: one module a stage; `core` for any stage; `commands` for people.

Never imports torch or `trainers` (import-linter holds it): data needs no training stack in memory.
"""
