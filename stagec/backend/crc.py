"""CRC-32 of every rank's trace, from the class' template: without reading a trace's bytes.

The CRC is linear over GF(2): changing bytes by XOR changes the CRC by the XOR of what each byte
contributes, and a byte with d bytes behind it contributes `table[byte] * x^(8d)` modulo the CRC's
polynomial. A rank variable stands at many positions with the same bytes, so the powers of its
positions add up to one number, once per class; a rank then costs a few table lookups.
(Polynomials are reflected, as in zlib: the highest bit is the coefficient of x^0.)
"""

import zlib
from collections.abc import Sequence
from functools import cache

import numpy as np

from stagec.backend.unroll import Template

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_X8 = 1 << 23
_LOW_BITS = 12


class TemplateCrc:
    """Knows the CRCs of all traces stamped from one template."""

    def __init__(self, template: Template) -> None:
        size = len(template.data)
        self._base = zlib.crc32(template.data.data)
        self._tables: list[list[np.ndarray]] = []
        for column in template.columns:
            behind = size - column.width - column.positions
            sums = np.bitwise_xor.reduce(_power_of_x8(behind), initial=np.uint32(0))
            tables: list[np.ndarray] = []
            for _ in range(column.width):
                tables.append(_multiply(_byte_table(), sums))
                sums = _multiply(np.asarray(sums), np.uint32(_X8))
            self._tables.append(tables[::-1])

    def of(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """The CRCs of the traces whose columns hold `rows[column][rank, byte]`."""
        crcs = np.full(len(rows[0]) if rows else 1, self._base, dtype=np.uint32)
        for row, tables in zip(rows, self._tables, strict=True):
            for place, table in enumerate(tables):
                crcs ^= table[row[:, place]]
        return crcs


def _multiply(a: np.ndarray, b: np.ndarray | np.uint32) -> np.ndarray:
    """The product of polynomials modulo the CRC's, elementwise."""
    product = np.zeros(np.broadcast(a, b).shape, dtype=np.uint32)
    b = np.asarray(b, dtype=np.uint32)
    for bit in range(31, -1, -1):
        product ^= np.where(a >> np.uint32(bit) & np.uint32(1), b, np.uint32(0))
        b = (b >> np.uint32(1)) ^ np.where(b & np.uint32(1), np.uint32(_POLYNOMIAL), np.uint32(0))
    return product


def _powers(base: np.ndarray, count: int) -> np.ndarray:
    """1, base, base^2, ...: `count` of them, by doubling."""
    powers = np.array([_ONE], dtype=np.uint32)
    step = base
    while len(powers) < count:
        powers = np.concatenate([powers, _multiply(powers, step)])
        step = _multiply(step, step)
    return powers[:count]


def _power_of_x8(exponents: np.ndarray) -> np.ndarray:
    """x^(8 e) for each exponent, from two small tables."""
    if not len(exponents):
        return np.zeros(0, dtype=np.uint32)
    low = _low_powers()
    step = _multiply(low[-1:], np.uint32(_X8))
    high = _powers(step, (int(exponents.max()) >> _LOW_BITS) + 1)
    return _multiply(low[exponents & ((1 << _LOW_BITS) - 1)], high[exponents >> _LOW_BITS])


@cache
def _low_powers() -> np.ndarray:
    return _powers(np.array([_X8], dtype=np.uint32), 1 << _LOW_BITS)


@cache
def _byte_table() -> np.ndarray:
    """What a last byte contributes."""
    zero = zlib.crc32(b"\0")
    return np.array([zlib.crc32(bytes([b])) ^ zero for b in range(256)], dtype=np.uint32)
