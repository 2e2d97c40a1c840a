"""One program written in several ways: other names, another order of what has none, an axis of size 1 more. What it costs is the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random

from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.summary import summarize
from tests.differential.random_plans import Drawn
from tests.differential.sweeps import NEAR_S, whole

OWN_NAMES = [
    "B",
    "S",
    "D",
    "F",
    "H",
    "K",
    "E",
    "V",
    "L",
    "X",
    "A",
    "N",
    "dp",
    "pp",
    "Block",
    "Mlp",
    "Attention",
    "Net",
    "embed",
    "norm",
    "head",
    "wq",
    "wk",
    "wv",
    "wo",
    "up",
    "down",
    "gate",
    "router",
    "n1",
    "n2",
    "x",
    "h",
    "y",
    "n",
    "gates",
    "chosen",
    "routed",
    "tokens",
    "targets",
]
"""Names that texts of `random_plans` choose, but for `tp` and `cp`, which are settings, too."""


def renamed(text: str, rng: Random) -> str:
    numbers = rng.sample(range(100), len(OWN_NAMES))
    others = {
        name: f"{'Z' if name[0].isupper() else 'z'}{number}"
        for name, number in zip(OWN_NAMES, numbers, strict=True)
    }
    found = re.sub(r"\b[A-Za-z_]\w*", lambda word: others.get(word[0], word[0]), text)
    return found.replace(f"{others['tokens']} = ", "tokens = ")  # an argument of `dispatch`


def axes(text: str) -> list[str]:
    return text.split("  mesh ")[1].split("\n")[0].split(", ")


def on_mesh(text: str, listed: list[str]) -> str:
    return text.replace(f"  mesh {', '.join(axes(text))}\n", f"  mesh {', '.join(listed)}\n")


def one_axis_more(text: str, rng: Random) -> str:
    """An axis of size 1 that no rule names."""
    listed = axes(text)
    listed.insert(rng.randint(0, len(listed)), "one = 1")
    return on_mesh(text, listed)


def other_order_of_ranks(text: str, rng: Random) -> str:
    return on_mesh(text, rng.sample(listed := axes(text), len(listed)))


def other_order_of_clauses(text: str, rng: Random) -> str:
    """Rules for dims keep their order, in which they cut a dim."""
    before, _, plan = text.partition("plan p {\n")
    clauses = plan.removesuffix("\n}\n").split("\n")
    rules = [clause for clause in clauses if clause.startswith("  shard")]
    rest = [clause for clause in clauses if clause not in rules]
    return "\n".join([f"{before}plan p {{", *rng.sample(rest, len(rest)), *rules, "}\n"])


def other_order_of_dims(text: str, rng: Random) -> str:
    lines = text.split("\n")
    dims = [line for line in lines if line.startswith("dim ")]
    return "\n".join([*rng.sample(dims, len(dims)), *(line for line in lines if line not in dims)])


WAYS: Mapping[str, Callable[[str, Random], str]] = {
    "other names": renamed,
    "an axis of size 1 more": one_axis_more,
    "another order of ranks": other_order_of_ranks,
    "another order of clauses": other_order_of_clauses,
    "another order of dims": other_order_of_dims,
}
DEVICE = "device h100 { nvme_bytes_per_s = 6e9 }"
"""Of which all times of random plans are known."""
ELSEWHERE = "another order of ranks"
"""Who sits in a node with whom is another question then, and times are."""


def cost(text: str) -> dict[str, object]:
    """All that is counted of a plan, or the codes of why it does not compile."""
    try:
        compiled = compile_text(text, "random.stg")
        counted = whole(compiled)
    except CompileError as error:
        return {"does not compile": sorted({each.code for each in error.diagnostics})}
    traffic = [
        sorted((t.kind, t.count, t.operand_bytes, t.result_bytes) for t in each.traffic)
        for each in summarize(compiled.module, compiled.counts).classes
    ]
    return {**counted, "traffic": sorted(traffic)}


def differences_between_ways(drawn: Drawn, rng: Random) -> list[str]:
    """Where what a text costs depends on how it is written."""
    expected = cost(drawn.text)
    found: list[str] = []
    for way, write in WAYS.items():
        text = write(drawn.text, rng)
        got = cost(text)
        untold = ("step_time", "bubble") if way == ELSEWHERE else ()
        found += [
            f"with {way}, {name} is {got.get(name)}, otherwise {expected.get(name)}"
            for name in sorted({*expected, *got} - {*untold})
            if not same(expected.get(name), got.get(name))
        ]
    return found


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= NEAR_S
    return one == other
