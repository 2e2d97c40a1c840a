"""Exact size expressions: `B*S*D`, `S/(cp*tp)`, `ceildiv(V, dp)*D`.

A `Size` is a polynomial with rational coefficients and integer exponents (negative ones divide)
over *atoms*. An atom is a named size (`S`, `tp`) or an opaque function of sizes (`ceildiv`, `max`,
`min`, `floordiv`, `mod`), so that every expression has one canonical form: equal sizes compare and hash equal.
Never a float: sizes exceed 2**53. sympy is for people (`stagec explain`), not for this module.
"""

from stagec.symbolic.algebra import (
    FUNCTIONS,
    ONE,
    ZERO,
    NoNumberError,
    OpaqueCall,
    Size,
    SizeError,
    call,
    ceildiv,
    constant,
    product,
    symbol,
    total,
)
from stagec.symbolic.text import parse, size

__all__ = [
    "FUNCTIONS",
    "ONE",
    "ZERO",
    "NoNumberError",
    "OpaqueCall",
    "Size",
    "SizeError",
    "call",
    "ceildiv",
    "constant",
    "parse",
    "product",
    "size",
    "symbol",
    "total",
]
