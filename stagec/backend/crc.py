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

from stagec.backend.unroll import TraceTemplate

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_X8 = 1 << 23
_LOW_BITS = 12
_LOW_MASK = (1 << _LOW_BITS) - 1


class TemplateCrc:
    """Knows what rank variables do to the CRC of a template: of all that have them at the same places."""

    def __init__(self, template: TraceTemplate) -> None:
        size, columns = len(template.data), template.columns
        self._tables: list[np.ndarray] = []
        if not columns:
            return
        last = np.array([_sum_of_powers(size - c.width - c.positions) for c in columns])
        widest = max(column.width for column in columns)
        behind = np.arange(widest - 1, -1, -1)  # bytes of the hole behind each of its bytes
        sums = _multiply(last[:, None], _low_powers()[behind])
        tables = _byte_tables(sums)
        self._tables = [table[widest - c.width :] for table, c in zip(tables, columns, strict=True)]

    def of(self, template: int, rows: Sequence[np.ndarray]) -> np.ndarray:
        """The CRCs of the traces whose columns hold `rows[column][rank, byte]`, by the CRC of their template."""
        crcs = np.full(len(rows[0]) if rows else 1, template, dtype=np.uint32)
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


def _sum_of_powers(exponents: np.ndarray) -> np.ndarray:
    """The sum of x^(8 e) over descending exponents. Those with the same high bits are first added by
    their low bits, from a table: a few thousand products become a few hundred."""
    low, high = _low_powers()[exponents & _LOW_MASK], exponents >> _LOW_BITS
    starts = np.flatnonzero(np.diff(high, prepend=-1))
    sums = np.bitwise_xor.reduceat(low, starts)
    powers = _high_powers(1 << int(high[0]).bit_length())
    return np.bitwise_xor.reduce(_multiply(sums, powers[high[starts]]))


@cache
def _low_powers() -> np.ndarray:
    return _powers(np.array([_X8], dtype=np.uint32), 1 << _LOW_BITS)


@cache
def _high_powers(count: int) -> np.ndarray:
    step = _multiply(_low_powers()[-1:], np.uint32(_X8))
    return _powers(step, count)


def _byte_tables(sums: np.ndarray) -> np.ndarray:
    """What each byte contributes at positions whose powers sum up to `sums`: one more axis, of 256.
    It is enough to multiply for the eight bytes of one bit."""
    zero = zlib.crc32(b"\0")
    bits = np.array([zlib.crc32(bytes([1 << k])) ^ zero for k in range(8)], dtype=np.uint32)
    products = _multiply(sums[..., None], bits)
    tables = np.zeros((*sums.shape, 256), dtype=np.uint32)
    for k in range(8):
        tables[..., 1 << k : 2 << k] = tables[..., : 1 << k] ^ products[..., k, None]
    return tables
