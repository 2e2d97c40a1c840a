"""Texts: models with a few changes, compiled as far as they go."""

from __future__ import annotations

import random
import re
import string

from xdsl.dialects.builtin import ModuleOp

from stagec.advice import warnings
from stagec.backend.errors import TraceError
from stagec.compiled import Compiled
from stagec.diagnostics import CompileError
from stagec.driver import Stops, compile_text
from stagec.estimate.many_microbatches import ManyMicrobatches, look
from stagec.reports.many_microbatches import brief
from tests.attack.case import Failure, Kind, fewer_lines
from tests.attack.models import MODELS, random_model, random_plan
from tests.unit.examples import EXAMPLES

TOKEN = re.compile(r'[A-Za-z_0-9.]+|"[^"\n]*"|->|[=<>!*]=|\*\*|[^\s]|\s+')
NUMBERS = (
    "0",
    "1",
    "-1",
    "3",
    "2 ** 62",
    "9223372036854775807",
    "1e300",
    "1/3",
    "4611686018427387904",
)
ODD = string.printable + "é×\0\u2028\u202e😀"


def base(draw: random.Random) -> str:
    if draw.random() < 0.04:
        return draw.choice(EXAMPLES).read_text("utf-8")
    name = random_model(draw)
    return MODELS[name] + random_plan(draw, name)


def long(draw: random.Random) -> str:
    """Much of one thing: what takes time in the square of it takes too long."""
    many = draw.choice((20, 300, 3000))
    names = [f"X{i}" for i in range(many)]
    match draw.randrange(6):
        case 0:
            dims = "".join(f"dim {name} = {i + 1}\n" for i, name in enumerate(names))
        case 1:
            dims = "dim X0 = 2\n" + "".join(
                f"dim X{i} = X{i - 1} + 1\n" for i in range(many, 0, -1)
            )
        case 2:
            dims = "".join(f"dim {name} = 2 * Y{i}\n" for i, name in enumerate(names))
        case 3:
            dims = f"dim Y = {' + '.join(names)}\n"
        case 4:
            dims = f"dim Y = {' + '.join('1' for _ in range(100 * many))}\n"
        case _:
            few = names[: many // 10]
            text = "".join(f"  y = y * {name}\n" for name in few)
            return (
                f"dim B = 8\ndim D = 8\nmodel M(x[B, D]) {{\n  weight {', '.join(n + '[D]' for n in few)}\n"
                f"  y = x\n{text}  loss = sum(y, over = [B, D])\n}}\nplan p {{ mesh dp = 2 shard B over dp }}\n"
            )
    return dims + base(draw)


def changed(draw: random.Random) -> str:
    if draw.random() < 0.01:
        return long(draw)
    text = base(draw)
    if draw.random() < 0.15:
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(text))
            text = (
                text[:at]
                + "".join(draw.choices(ODD, k=draw.randint(0, 2)))
                + text[at + draw.randint(0, 2) :]
            )
        return text
    tokens = TOKEN.findall(text)
    words = [i for i, token in enumerate(tokens) if not token.isspace()]
    for _ in range(draw.randint(1, 3)):
        at, other = draw.choice(words), draw.choice(words)
        match draw.randrange(6):
            case 0:
                tokens[at] = ""
            case 1:
                tokens[at] += " " + tokens[at]
            case 2:
                tokens[at] = tokens[other]
            case 3:
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case 4:
                tokens[at] = draw.choice(NUMBERS)
            case _:
                numbers = [i for i in words if tokens[i].isdigit()] or words
                tokens[draw.choice(numbers)] = draw.choice(NUMBERS)
    return "".join(tokens)


def run(text: str) -> None:
    """What `stagec MODEL` asks of a text."""

    def on_pass(name: str, module: ModuleOp) -> None:
        if name == "split-microbatches":
            look(module)

    try:
        compiled = compiled_or_brief(text, Stops(on_pass=on_pass))
        if (
            compiled is not None
            and compiled.traces is not None
            and compiled.trace_set.mesh.num_ranks <= 4096
        ):
            assert isinstance(warnings(compiled, None), list)
    except CompileError as error:
        if not re.match(r"(error|warning)\[[EW]\d{4}\]: ", error.render()):
            raise Failure(f"a diagnostic without its form: {error.render()!r}") from None
    except TraceError as error:
        if not re.match(r"error\[E06\d\d\]: ", str(error)):
            raise Failure(f"a diagnostic without its form: {error}") from None


def compiled_or_brief(text: str, stops: Stops) -> Compiled | None:
    """The whole step; nothing of very many microbatches where few tell of it."""
    try:
        return compile_text(text, "attack.stg", stops=stops)
    except ManyMicrobatches as many:
        found = brief(
            many, lambda dim, size: compile_text(text, "attack.stg", None, {dim: str(size)})
        )
        return compile_text(text, "attack.stg") if found is None else None


TEXTS = Kind("texts", changed, run, fewer_lines, seconds=20)
"""Examples are large, and compiled whole."""
