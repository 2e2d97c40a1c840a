"""Texts with very much of one thing: each is compiled in seconds, or a limit is named."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.attack.case import Kind
from tests.attack.texts import run as run_text

PLAN = "plan p { mesh dp = 2 shard B over dp }\n"
SIZES = "dim B = 8\ndim D = 8\n"


def model(body: str, before: str = "", plan: str = PLAN) -> str:
    return f"{before}{SIZES}model M(x[B, D]) {{\n{body}}}\n{plan}"


def simple(before: str = "", plan: str = PLAN) -> str:
    return model("  weight w[D]\n  loss = sum(x * w, over = [B, D])\n", before, plan)


def in_plan(clauses: str) -> str:
    return f"plan p {{ mesh dp = 2 shard B over dp {clauses} }}\n"


def names(count: int) -> list[str]:
    return [f"X{i}" for i in range(count)]


def weights(count: int) -> str:
    steps = "".join(f"  y = y * {name}\n" for name in names(count))
    declared = ", ".join(f"{name}[D]" for name in names(count))
    return model(f"  weight {declared}\n  y = x\n{steps}  loss = sum(y, over = [B, D])\n")


def numbered(count: int, line: str) -> str:
    return "".join(line.format(i=i, next=i + 1) for i in range(count))


LARGE: dict[str, tuple[int, Callable[[int], str]]] = {
    "weights": (5_000, weights),
    "terms": (
        5_000,
        lambda n: model(
            f"  y = {' + '.join(['x'] * n)}\n  loss = sum(y, over = [B, D])\n",
        ),
    ),
    "dims": (100_000, lambda n: simple(numbered(n, "dim X{i} = {next}\n"))),
    "dims of dims": (
        12_000,
        lambda n: simple(numbered(n, "dim X{i} = X{next} + 1\n") + f"dim X{n} = 1\n"),
    ),
    "unknown dims": (20_000, lambda n: simple(numbered(n, "dim X{i} = Q{i}\n"))),
    "dims twice": (20_000, lambda n: simple("dim X = 1\n" * n)),
    "a sum": (500_000, lambda n: simple(f"dim Y = {' + '.join(['1'] * n)}\n")),
    "a sum of names": (
        3_000,
        lambda n: simple(numbered(n, "dim X{i} = {next}\n") + f"dim Y = {' + '.join(names(n))}\n"),
    ),
    "a product": (
        90,
        lambda n: simple(
            numbered(n, "dim X{i} = 2\n")
            + f"dim Y = {' * '.join(f'({x} + 1)' for x in names(n))}\n"
        ),
    ),
    "powers": (6, lambda n: simple(f"dim Y = {' ** '.join(['2'] * n)}\n")),
    "brackets": (100_000, lambda n: simple(f"dim Y = {'(' * n}1{')' * n}\n")),
    "calls": (
        50_000,
        lambda n: model(f"  y = {'relu(' * n}x{')' * n}\n  loss = sum(y, over = [B, D])\n"),
    ),
    "repeats": (
        3_000,
        lambda n: model(
            f"  y = x\n  {'repeat 1 { ' * n}y = relu(y){' }' * n}\n  loss = sum(y, over = [B, D])\n"
        ),
    ),
    "modules": (
        2_000,
        lambda n: model(
            f"  y = A{n}(x)\n  loss = sum(y, over = [B, D])\n",
            "module A0(x[B, D]) -> [B, D] { return relu(x) }\n"
            + numbered(n, "module A{next}(x[B, D]) -> [B, D] {{ return A{i}(x) }}\n"),
        ),
    ),
    "calls of calls": (
        40,
        lambda n: model(
            f"  y = A{n}(x)\n  loss = sum(y, over = [B, D])\n",
            "module A0(x[B, D]) -> [B, D] { return relu(x) }\n"
            + numbered(n, "module A{next}(x[B, D]) -> [B, D] {{ return A{i}(A{i}(x)) }}\n"),
        ),
    ),
    "plans": (
        3_000,
        lambda n: (
            simple(plan=PLAN + "plan q0 extends p { }\n")
            + numbered(n, "plan q{next} extends q{i} {{ }}\n")
        ),
    ),
    "rules": (5_000, lambda n: simple(plan=in_plan("shard D over dp\n" * n))),
    "overrides": (3_000, lambda n: simple(plan=in_plan("shard M.w[D] over dp\n" * n))),
    "axes": (
        3_000,
        lambda n: simple(plan=f"plan p {{ mesh {', '.join(f'{x} = 1' for x in names(n))} }}\n"),
    ),
    "a list": (
        100_000,
        lambda n: simple(plan=in_plan(f"pass x {{ a = [{', '.join(map(str, range(n)))}] }}")),
    ),
    "a string": (3_000_000, lambda n: simple(plan=in_plan(f'pass x {{ a = "{"y" * n}" }}'))),
    "unknown ops": (
        5_000,
        lambda n: model(numbered(n, "  y{i} = foo{i}(x)\n") + "  loss = sum(x, over = [B, D])\n"),
    ),
    "a name": (1_000_000, lambda n: simple(f"dim {'X' * n} = 2\n")),
    "a number": (4_000, lambda n: simple(f"dim X = {'9' * n}\n")),
    "a comment": (10_000_000, lambda n: simple(f"# {'x' * n}\n")),
    "lines": (5_000_000, lambda n: simple("\n" * n)),
    "zeros": (1_000_000, lambda n: "\0" * n),
    "braces": (1_000_000, lambda n: "{" * n),
}


@dataclass(frozen=True)
class Case:
    what: str
    number: int


def make(draw: random.Random) -> Case:
    what = draw.choice(list(LARGE))
    most, _ = LARGE[what]
    return Case(what, most if draw.random() < 0.3 else draw.randint(1, most))


def run(case: Case) -> None:
    run_text(LARGE[case.what][1](case.number))


SIZED = Kind("large", make, run, seconds=10)
"""Twice the five seconds that a case may take of a machine that does nothing else."""
