"""Exact size expressions: `B*S*D`, `S/(cp*tp)`, `ceildiv(V, dp)*D`.

A `Size` is a polynomial with rational coefficients and integer exponents (negative ones divide)
over *atoms*. An atom is a named size (`S`, `tp`) or an opaque function of sizes (`ceildiv`, `max`,
`min`, `floordiv`, `mod`), so that every expression has one canonical form: equal sizes compare and hash equal.
Never a float: sizes exceed 2**53. sympy is for people (`stagec explain`), not for this module.
"""

from stagec.symbolic.algebra import (
    FUNCTIONS as FUNCTIONS,
    ONE as ONE,
    ZERO as ZERO,
    NoNumberError as NoNumberError,
    OpaqueCall as OpaqueCall,
    Size as Size,
    SizeError as SizeError,
    call as call,
    ceildiv as ceildiv,
    constant as constant,
    product as product,
    symbol as symbol,
    total as total,
)
from stagec.symbolic.text import parse as parse, size as size
