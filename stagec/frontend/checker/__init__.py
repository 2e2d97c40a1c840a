"""Checking: names, arities, shapes, sizes, plans. Every mistake is reported, not only the first.

`check` takes what was parsed and yields a `CheckedModel`, in which nothing is left to resolve.
"""

from stagec.frontend.checker.program import CheckedModel, check, sizes_of

__all__ = ["CheckedModel", "check", "sizes_of"]
