"""Blocks of other parts than a transformer's: each part in the language of stagec, as `composed` has it for PyTorch.

A case says `sublayers=heads|gate+twice`: a block of two norms, after the first of which `heads` and `gate` read the same, and after the second `twice`. What
parts make is added to what came in.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fidelity.attention_text import key_heads
from tests.fidelity.oracle import Case


@dataclass(frozen=True)
class Sublayer:
    """`weights` by name, as PyTorch stores them: outputs, a bar, inputs; or a vector. `lines` are from `x` [B, S, D] to what is returned, of the same dims."""

    weights: dict[str, str]
    lines: tuple[str, ...]


FEED = {"up": "F | D", "down": "D | F"}
HEADS = {"q": "H, E | D", "k": "N, E | D", "v": "N, E | D"}
OUT = {"out": "D | H, E"}

SUBLAYERS = {
    "mlp": Sublayer(FEED, ("return gelu(x @ up) @ down",)),
    "relu2": Sublayer(FEED, ("return square(relu(x @ up)) @ down",)),
    "biased": Sublayer(
        {"up": "F | D", "shift": "F", "down": "D | F", "last": "D"},
        ("return silu(x @ up + shift) @ down + last",),
    ),
    "gated": Sublayer(
        {"gate": "F | D", **FEED}, ("g = gelu(x @ gate)", "return g * (x @ up) @ down")
    ),
    "narrow": Sublayer({"a": "R | D", "b": "D | R"}, ("return x @ a @ b",)),
    "gate": Sublayer({"gate": "U | D"}, ("g[B, S, U] = sigmoid(x @ gate)", "return x * g[U -> D]")),
    # One weight twice, and one in both directions.
    "twice": Sublayer(FEED, ("h = gelu(x @ up) @ down", "return gelu(h @ up) @ down")),
    "tied": Sublayer({"up": "F | D"}, ("return gelu(x @ up) @ up",)),
    "scaled": Sublayer({**FEED, "scale": "D"}, ("return gelu(x @ up) @ down * scale",)),
    # Over positions, and over none of them.
    "mixer": Sublayer(
        {"mix": "T | S", "back": "S | T"},
        ("h[B, T, D] = gelu(x @ mix)", "return h @ back"),
    ),
    "squeeze": Sublayer(
        {"a": "R | D", "b": "U | R"},
        (
            "seen[B, D] = mean(x, over = S)",
            "g[B, U] = sigmoid(relu(seen @ a) @ b)",
            "return x * g[U -> D]",
        ),
    ),
    "heads": Sublayer(
        {**HEADS, **OUT},
        (
            "mixed = attention(x @ q, x @ k, x @ v, causal = true, count = full)",
            "return mixed @ out",
        ),
    ),
    "shared": Sublayer(
        {"qv": "H, E | D", **OUT},
        (
            "h = x @ qv",
            "mixed = attention(h, h, h, causal = true, count = full)",
            "return mixed @ out",
        ),
    ),
    # Attention without a softmax: keys and values are summed over positions first.
    "linear": Sublayer(
        {"q": "H, E | D", "k": "H, E | D", "v": "H, W | D", "out": "D | H, W"},
        (
            "keyed[B, H, E, W] = silu(x @ k) @ (x @ v)",
            "mixed[B, S, H, W] = silu(x @ q) @ keyed",
            "return mixed @ out",
        ),
    ),
    # With what the first norm of the block made.
    "early": Sublayer(FEED, ("return gelu(x @ up) @ down * first",)),
    # A filter for each channel, and a learned gate.
    "conv": Sublayer(
        {"filter": "J, D", "gate": "U | D"},
        (
            "g[B, S, U] = x @ gate",
            "return silu(causal_conv(x, filter, over = S)) * g[U -> D]",
        ),
    ),
    # Each layer attends to what stands before the first.
    "cross": Sublayer(
        {**HEADS, **OUT},
        ("return attention(x @ q, (source @ k)[S -> Y], (source @ v)[S -> Y]) @ out",),
    ),
    "experts": Sublayer({}, ()),
}


OTHERS = ("source", "first")
"""What parts read besides `x`."""

LAST = ("down", "out")
"""Weights whose inputs tensor parallelism splits, not their outputs."""

FILTER_WIDTH = 3
"""Positions that a filter sees."""


def steps_of(case: Case) -> list[list[str]]:
    """Of a block: after each norm the parts that read it. None of a transformer's."""
    said = str(case.model.get("sublayers", ""))
    return [step.split("|") for step in said.split("+")] if said else []


def parts_of(case: Case) -> list[tuple[str, str, Sublayer]]:
    """What each part of a block is called here, in the text, and what it is."""
    names = [name for step in steps_of(case) for name in step]
    return [
        (f"part{n}", "Experts" if name == "experts" else f"{name.capitalize()}{n}", SUBLAYERS[name])
        for n, name in enumerate(names)
    ]


def sizes_of(case: Case) -> dict[str, int]:
    m = case.model
    width = m["dim"] // m["heads"]
    sizes = {"D": m["dim"], "F": m["ffn"], "H": m["heads"], "E": width, "N": m["kv_heads"]}
    sizes |= {"R": m["dim"] // 4, "U": m["dim"], "T": 2 * m["seq"], "S": m["seq"], "W": width}
    return sizes | {"J": FILTER_WIDTH}


def further_dims(case: Case) -> dict[str, object]:
    """Those that only parts have."""
    formulas = {"R": "floordiv(D, 4)", "U": "D", "T": "2 * S", "W": "E", "J": FILTER_WIDTH}
    formulas |= {"Y": "S"}
    parts = [part for *_, part in parts_of(case)]
    said = " ".join(text for part in parts for text in (*part.weights.values(), *part.lines))
    return {name: size for name, size in formulas.items() if re.search(rf"\b{name}\b", said)}


def has_part(case: Case, kind: str) -> bool:
    return any(kind in step for step in steps_of(case))


def reads_source(case: Case) -> bool:
    """Whether layers attend to the embedded tokens, which a norm of its own makes ready."""
    return has_part(case, "cross")


def linear_of(part: Sublayer) -> list[bool]:
    """Which weights are those of linear layers."""
    return [" | " in dims for dims in part.weights.values()]


def shapes_of(case: Case, part: Sublayer) -> Iterator[tuple[int, ...]]:
    """Of the weights of a part, as PyTorch has them: linear layers are matrices."""
    sizes = sizes_of(case)
    for dims in part.weights.values():
        sides = [[sizes[dim] for dim in side.split(", ")] for side in dims.split(" | ")]
        yield tuple(sides[0]) if len(sides) == 1 else tuple(map(math.prod, sides))


def part_modules(case: Case) -> list[str]:
    """Of the text."""
    found: list[str] = []
    for _, name, part in parts_of(case):
        if not part.lines:
            continue  # Experts, whose module is that of any model with experts.
        dims = {w: re.sub(r"\bN\b", key_heads(case), said) for w, said in part.weights.items()}
        weights = ", ".join(f"{weight}[{said}]" for weight, said in dims.items())
        lines = "".join(f"  {line}\n" for line in (f"weight {weights}", *part.lines))
        others = "".join(f", {other}[B, S, D]" for other in OTHERS if other in lines)
        found.append(f"module {name}(x[B, S, D]{others}) -> [B, S, D] {{\n{lines}}}\n")
    return found


def block_lines(case: Case, norm: str) -> list[str]:
    """Of the block's body."""
    steps = steps_of(case)
    names = iter([name for _, name, _ in parts_of(case)])
    lines = [f"weight {', '.join(f'norm{n}[D]' for n in range(len(steps)))}"]
    before = "x"
    for n, step in enumerate(steps):
        read = {"early": f"n{n}, n0", "cross": f"n{n}, source"}
        made = " + ".join(f"{next(names)}({read.get(kind, f'n{n}')})" for kind in step)
        lines += [f"n{n} = {norm}({before}, norm{n})", f"h{n} = {before} + {made}"]
        before = f"h{n}"
    return [*lines, f"return {before}"]
