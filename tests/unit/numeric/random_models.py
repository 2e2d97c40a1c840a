"""Random models and plans, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

DIMS = ("B", "S", "D", "F", "H", "T")
"""All of size 4, so that up to two axes of size 2 split each. T is S under another name."""

UNARY = ("tanh", "sigmoid", "silu", "softplus", "sin", "gelu", "exp", "-")

MOST_DIMS = 3

Shape = tuple[str, ...]


@dataclass
class Writer:
    """Writes the statements of one body."""

    draw: st.DrawFn
    mixes_batch: bool
    """Whether a value of one sequence may depend on another."""
    lines: list[str] = field(default_factory=list)
    values: dict[str, Shape] = field(default_factory=dict)
    weights: dict[str, Shape] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=lambda: [0])

    def name(self, prefix: str) -> str:
        self.numbers[0] += 1
        return f"{prefix}{self.numbers[0]}"

    def one_of(self, options: Sequence):
        return self.draw(st.sampled_from(options))

    def some_of(self, options: Sequence[str], least: int = 1, most: int = 9) -> Shape:
        if not options:
            return ()
        most = min(most, len(options))
        chosen = self.draw(
            st.lists(st.sampled_from(options), min_size=least, max_size=most, unique=True)
        )
        return tuple(chosen)

    def value(self) -> tuple[str, Shape]:
        name = self.one_of(sorted(self.values))
        return name, self.values[name]

    def weight(self, shape: Shape) -> str:
        """A weight of this shape: one that is there, or another."""
        known = [n for n, s in self.weights.items() if s == shape]
        if known and self.draw(st.booleans()):
            return self.one_of(known)
        name = self.name("w")
        self.weights[name] = shape
        return name

    def reducible(self, shape: Shape) -> list[str]:
        return [n for n in shape if n != "B" or self.mixes_batch]

    def assign(self, text: str, shape: Shape, annotated: bool = False) -> None:
        name = self.name("x")
        self.lines.append(
            f"{name}[{', '.join(shape)}] = {text}" if annotated else f"{name} = {text}"
        )
        self.values[name] = shape

    def statement(self) -> None:
        kinds = ("linear", "linear", "add", "add", "unary", "product", "norm", "softmax", "reduce")
        kinds += ("rename", "dropout", "divide", "subtract", "scale", "bias", "mix")
        getattr(self, self.one_of(kinds))()

    def linear(self) -> None:
        x, shape = self.value()
        over = self.some_of(self.reducible(shape), least=0, most=2) if self.reducible(shape) else ()
        kept = tuple(n for n in shape if n not in over)
        free = [n for n in DIMS if n not in shape and n != "B"]
        new = self.some_of(free, 0, MOST_DIMS - len(kept)) if len(kept) < MOST_DIMS else ()
        if over and kept + new:
            self.assign(f"{x} @ {self.weight(over + new)}", kept + new, annotated=True)

    def mix(self) -> None:
        """A contraction of two activations."""
        (x, left), (y, right) = self.value(), self.value()
        over = [n for n in self.reducible(left) if n in right]
        result = tuple(dict.fromkeys(n for n in (*left, *right) if n not in over[:1]))
        if over and result and len(result) <= MOST_DIMS:
            self.assign(f"{x} @ {y}", result, annotated=True)

    def binary(self, sign: str) -> None:
        (x, left), (y, right) = self.value(), self.value()
        if set(right) <= set(left):
            self.assign(f"{x} {sign} {y}", left)

    def add(self) -> None:
        self.binary("+")

    def subtract(self) -> None:
        self.binary("-")

    def product(self) -> None:
        self.binary("*")

    def divide(self) -> None:
        (x, left), (y, right) = self.value(), self.value()
        if set(right) <= set(left):
            self.assign(f"{x} / (softplus({y}) + 1.0)", left)

    def unary(self) -> None:
        x, shape = self.value()
        function = self.one_of(UNARY)
        if function == "exp":
            self.assign(f"exp(-softplus({x}))", shape)
        else:
            self.assign(f"-{x}" if function == "-" else f"{function}({x})", shape)

    def scale(self) -> None:
        x, shape = self.value()
        self.assign(f"{x} * 0.5", shape)

    def bias(self) -> None:
        x, shape = self.value()
        names = self.some_of([n for n in shape if n != "B"], 0)
        if names:
            sign = self.one_of(("+", "*"))
            self.assign(f"{x} {sign} {self.weight(names)}", shape)

    def norm(self) -> None:
        x, shape = self.value()
        over = self.some_of(self.reducible(shape), 0, 2)
        if not over:
            return
        kind = self.one_of(("rms_norm", "layer_norm"))
        affine = [x]
        if "B" not in over:
            for _ in range(self.draw(st.integers(0, 2 if kind == "layer_norm" else 1))):
                affine.append(self.weight(over))
        shift = self.draw(st.booleans())
        text = f"{kind}({', '.join(affine)}, over = [{', '.join(over)}])"
        # Away from the point where a variance is zero.
        self.assign(f"{text} + 1.0" if shift else text, shape)

    def softmax(self) -> None:
        x, shape = self.value()
        over = self.some_of(self.reducible(shape), 0, 2)
        if over:
            self.assign(f"softmax({x}, over = [{', '.join(over)}])", shape)

    def reduce(self) -> None:
        x, shape = self.value()
        over = self.some_of(self.reducible(shape), 0, 2)
        if over and len(over) < len(shape):
            kind = self.one_of(("sum", "mean", "max"))
            text = f"{kind}({x}, over = [{', '.join(over)}])"
            self.assign(text, tuple(n for n in shape if n not in over))

    def rename(self) -> None:
        x, shape = self.value()
        for old, new in (("S", "T"), ("T", "S")):
            if old in shape and new not in shape:
                renamed = tuple(new if n == old else n for n in shape)
                self.assign(f"{x}[{old} -> {new}]", renamed)
                return

    def dropout(self) -> None:
        x, shape = self.value()
        self.assign(f"dropout({x}, rate = 0.25)", shape)

    def repeat(self, depth: int = 1) -> None:
        """Carry a value through a body that reads others too."""
        x, shape = self.value()
        inner = Writer(self.draw, self.mixes_batch, values=dict(self.values), numbers=self.numbers)
        carried = self.name("c")
        self.lines.append(f"{carried} = {x} * 0.5")
        inner.values[carried] = shape
        inner.weights = dict(self.weights)
        known = set(inner.weights)
        for _ in range(self.draw(st.integers(1, 4))):
            inner.statement()
        if depth and self.draw(st.booleans()):
            inner.repeat(depth - 1)
        fitting = [n for n, s in inner.values.items() if s == shape and n not in self.values]
        inner.lines.append(f"{carried} = tanh({inner.one_of(fitting)} + {carried})")
        own = [f"{n}[{', '.join(s)}]" for n, s in inner.weights.items() if n not in known]
        if own:
            inner.lines.insert(0, f"weight {', '.join(own)}")
        body = "\n".join(f"  {line}" for line in inner.lines)
        self.lines.append(f"repeat 2 {{\n{body}\n}}")
        self.values[carried] = shape


@dataclass(frozen=True)
class Case:
    model: str
    plan: str


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A model with a loss, and a plan that spreads it."""
    mixes_batch = draw(st.booleans())
    writer = Writer(draw, mixes_batch)
    writer.values = {"input": ("B", "S", "D")}
    for _ in range(draw(st.integers(1, 6))):
        writer.statement()
    for _ in range(draw(st.integers(0, 2))):
        writer.repeat()
        for _ in range(draw(st.integers(0, 3))):
            writer.statement()
    if not writer.weights:
        writer.bias()
    last = list(writer.values.items())[-1]
    if draw(st.booleans()) and len(last[1]) > 1 and "T" not in last[1]:
        loss = f"mean({last[0]} * {last[0]}, over = [{', '.join(last[1])}])"
    else:
        loss = f"sum({last[0]}, over = [{', '.join(last[1])}])"
    weights = [f"{n}[{', '.join(s)}]" for n, s in writer.weights.items()]
    lines = [f"weight {', '.join(weights)}"] if weights else []
    body = "\n".join(f"  {line}" for line in [*lines, *writer.lines, f"loss = {loss}"])
    dims = "\n".join(f"dim {n} = {'S' if n == 'T' else 4}" for n in DIMS)
    model = f"{dims}\nmodel M(input[B, S, D]) {{\n{body}\n}}"
    repeats = any(line.startswith("repeat") for line in writer.lines)
    return Case(model, draw(plans(list(writer.values)[1:], mixes_batch, repeats)))


@st.composite
def plans(draw: st.DrawFn, names: list[str], mixes_batch: bool, repeats: bool) -> str:
    """Rules for dims in any order, overrides of values, and what else changes the collectives."""
    axes = draw(st.sampled_from([("a",), ("a", "b")]))
    lines = [f"mesh {', '.join(f'{a} = 2' for a in axes)}"]
    for _ in range(draw(st.integers(1, 4))):
        dims = draw(st.lists(st.sampled_from(DIMS), min_size=1, max_size=3, unique=True))
        over = draw(st.lists(st.sampled_from(axes), min_size=1, max_size=2, unique=True))
        lines.append(f"shard {', '.join(dims)} over {', '.join(over)}")
    if names and draw(st.booleans()):
        name = draw(st.sampled_from(names))
        lines.append(f"shard M.{name} over none")
    reduce, keep, bias = (
        draw(st.sampled_from(("lazy", "eager"))),
        draw(st.sampled_from(("gathered", "shard"))),
        draw(st.sampled_from(("after", "before"))),
    )
    lines.append(f"collectives {{ reduce = {reduce}, keep = {keep}, bias = {bias} }}")
    if repeats:
        lines.append(f"recompute {draw(st.sampled_from(('none', 'full', 'tanh')))}")
    if not mixes_batch and draw(st.booleans()):
        lines.append("microbatch 1")
    if draw(st.booleans()):
        lines.append(f"zero {draw(st.integers(1, 3))} over {', '.join(axes)}")
    return "\n".join([*lines, "optimizer sgd"])
