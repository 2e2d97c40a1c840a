"""Sizes are exact, canonical, and print what they parse."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagec import symbolic
from stagec.symbolic import Size, SizeError, call, size, symbol

NAMES = ("B", "S", "tp")
values = st.fixed_dictionaries({name: st.integers(1, 10**6) for name in NAMES})


def sizes() -> st.SearchStrategy[Size]:
    leaves = st.one_of(st.sampled_from(NAMES).map(symbol), st.integers(-9, 9).map(size))

    def larger(inner: st.SearchStrategy[Size]) -> st.SearchStrategy[Size]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]),
            pairs.map(lambda p: p[0] - p[1]),
            pairs.map(lambda p: p[0] * p[1]),
            st.tuples(inner, st.sampled_from(NAMES)).map(lambda p: p[0] / symbol(p[1])),
            pairs.map(lambda p: call("max", p[0], p[1])),
            st.tuples(inner, st.sampled_from(NAMES)).map(lambda p: call("ceildiv", p[0], p[1])),
        )

    return st.recursive(leaves, larger, max_leaves=6)


@given(sizes())
def test_prints_what_it_parses(expression: Size) -> None:
    assert size(str(expression)) == expression
    assert hash(size(str(expression))) == hash(expression)


@given(sizes(), sizes(), sizes(), values)
def test_ring(a: Size, b: Size, c: Size, at: dict[str, int]) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) * c == a * c + b * c
    assert a - a == 0
    assert (a * b).evaluate(at) == a.evaluate(at) * b.evaluate(at)
    assert (a + b).evaluate(at) == a.evaluate(at) + b.evaluate(at)


@given(sizes(), values)
def test_substitution_of_numbers_is_evaluation(expression: Size, at: dict[str, int]) -> None:
    assert expression.substitute(at).constant == expression.evaluate(at)


@given(st.integers(0, 10**30), st.integers(1, 10**20))
def test_functions_are_exact_beyond_floats(a: int, b: int) -> None:
    at = {"a": a, "b": b}
    assert size("ceildiv(a, b)").evaluate(at) == -(-a // b)
    assert size("floordiv(a, b)").evaluate(at) == a // b
    assert size("mod(a, b)").evaluate(at) == a % b
    assert size("a/b").evaluate(at) == Fraction(a, b)


def test_equal_sizes_have_one_form() -> None:
    assert str(size("S*B + B*S")) == "2*B*S"
    assert size("(B + S)*(B - S)") == size("B**2 - S**2")
    assert str(size("B*S/(tp*B)")) == "S/tp"
    assert size("max(B, B)") == symbol("B")
    assert symbolic.total([symbol("B")] * 1000) == 1000 * symbol("B")


@pytest.mark.parametrize(
    "text", ["", "B +", "(B", "2 2", "B // 2", "ceildiv(B", "B**S", "§", "1.5", "B)"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(SizeError):
        size(text)


def test_division() -> None:
    assert size("B*S + B") / size("S + 1") == symbol("B")
    with pytest.raises(SizeError, match="by the sum"):
        symbol("B") / size("S + 1")
    with pytest.raises(SizeError, match="zero"):
        symbol("B") / 0
    with pytest.raises(SizeError, match="not a whole number"):
        size("B/2").integer({"B": 3})
    with pytest.raises(SizeError, match="zero"):
        size("B/S").evaluate({"B": 1, "S": 0})
