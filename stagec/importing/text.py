"""Writing a model as text: dims, modules with their weights, and the model, as a person would lay them out.

`Writer` collects the parts in any order. A weight is declared once, with the tensor of the checkpoint that it stands for, and
is written at the head of its module. Dims get a comment each; two meanings never share a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm
from typing import Protocol

COLUMNS = 100
"""Lines are no longer than this where they can be broken."""

RANKS = 64
"""The ranks of the plans that shard parameters over all ranks."""


@dataclass(frozen=True)
class WrittenDim:
    name: str
    value: int
    text: str
    """Its size as it is written: `D / H`."""
    about: str


@dataclass(frozen=True)
class Weight:
    """A weight of a module, and where it is found in a checkpoint."""

    name: str
    dims: tuple[str, ...]
    tensors: tuple[str, ...]
    """Names in the checkpoint, with `{i}` for the layer. Several if the checkpoint has it in parts; a name that
    several weights have is a fused tensor."""
    dtype: str = ""
    buffer: bool = False
    """A buffer of the class in transformers: kept in checkpoints, and not counted among its parameters."""

    @property
    def text(self) -> str:
        return f"{self.name}[{', '.join(self.dims)}]" + (f": {self.dtype}" if self.dtype else "")


@dataclass
class Module:
    """A module, or the model itself."""

    name: str
    parameters: str
    results: str = ""
    about: str = ""
    weights: list[list[Weight]] = field(default_factory=list)
    """In groups that stand on a line together."""
    lines: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """Modules that it calls."""
    caches: list[str] = field(default_factory=list)
    """What is kept of each token for the tokens after it, as it is declared."""
    is_router: bool = False
    """Whether it chooses experts, by a parameter of its own rather than a linear layer."""

    def cache(self, name: str, *dims: str) -> str:
        """Declare a cache; its name."""
        self.caches.append(f"{name}[{', '.join(dims)}]")
        return name

    def weight(
        self,
        name: str,
        dims: str,
        *tensors: str,
        dtype: str = "",
        buffer: bool = False,
        join: bool = False,
    ) -> str:
        """Declare one; its name. `join` puts it on the line of the one before."""
        new = Weight(name, tuple(dims.split()), tensors, dtype, buffer)
        if join and self.weights:
            self.weights[-1].append(new)
        else:
            self.weights.append([new])
        return name

    def line(self, text: str) -> None:
        self.lines.append(text)

    def call(self, module: str) -> str:
        """Note that it calls a module; the name."""
        self.calls.append(module)
        return module

    @property
    def all_weights(self) -> list[Weight]:
        return [weight for group in self.weights for weight in group]

    def text(self, keyword: str = "module") -> str:
        about = "".join(f"# {line}\n" for line in self.about.split("\n") if line)
        results = f" -> {self.results}" if self.results else ""
        caches = [f"cache {', '.join(self.caches)}"] if self.caches else []
        body = [f"  {line}" for line in (*weight_lines(self.weights), *caches, *self.lines)]
        head = f"{keyword} {self.name}({self.parameters}){results} {{"
        return about + "\n".join([head, *body, "}"]) + "\n"


def weight_lines(groups: Iterable[Sequence[Weight]]) -> list[str]:
    """`weight` statements: groups join as long as a line has room for them."""
    lines: list[str] = []
    for group in groups:
        for text in broken([w.text for w in group]):
            joined = f"{lines[-1]}, {text}" if lines else ""
            if lines and len(group) <= 2 and len(joined) <= COLUMNS - 20:
                lines[-1] = joined
            else:
                lines.append(f"weight {text}")
    return lines


def broken(parts: Sequence[str]) -> list[str]:
    """Parts joined by commas, in lines of readable length."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(part) + 2 <= COLUMNS - 12:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return lines


class LayerPart(Protocol):
    """A mixer or a feed-forward network that a layer consists of."""

    def write(self, w: Writer, /) -> str:
        """Write its module; the module's name."""
        ...


class Writer:
    """The text of a model, as it grows."""

    def __init__(self) -> None:
        self.dims: dict[str, WrittenDim] = {}
        self.requirements: list[str] = []
        self.modules: dict[str, Module] = {}
        self.ops: dict[str, str] = {}
        """Declared ops, by name."""
        self.written: dict[object, str] = {}
        """Parts, and the modules that they became."""
        self.layers: dict[str, list[list[int]]] = {}
        """Of each block, for each place where the text calls it: the layers that it is there."""
        self.heads: list[str] = []
        """Dims of heads, which tensor parallelism splits."""
        self.key_heads: list[str] = []
        """Of these, such as several heads of queries share: ranks may have copies of one."""
        self.widths: list[str] = []
        """Other dims that it splits where it divides them."""
        self.experts: list[tuple[str, str]] = []
        """Dims of experts, and of the tokens of one."""
        self.shares: list[tuple[int, int]] = []
        """Of how many experts a token visits so many, for each kind of experts."""
        self.whole_batch = False
        """Whether the loss compares all of the batch, so that it cannot be cut."""
        self.lengths = ["S"]
        """Dims that are how long a sequence of tokens is."""
        self.images: list[str] = []
        """Dims that are how many images or recordings there are."""
        self.decodes = False
        """Whether it is a decoder alone, which makes one token after the other,"""
        self.widens_loss = False
        """Whether its class converts logits to fp32 for the loss."""
        self.seeing: set[str] = set()
        """Blocks that a class leaves out where there is no image."""
        self.idle: set[str] = set()
        """Blocks whose weights nothing uses."""
        self.towers: list[str] = []
        """Modules that see images, in front of all that is decoded."""
        self.stack: list[str] = []
        """Dims that are how often layers repeat, if all are in repeats of their own."""
        self.carries_state = False
        """and has mixers whose state a text cannot declare: recurrences that are ops of its own."""

    def dim(self, name: str, value: int, about: str, text: str = "") -> str:
        """A dim of that meaning: its name, numbered if another has the one that is asked for."""
        for candidate in (name, *(f"{name}{n}" for n in range(2, 100))):
            known = self.dims.get(candidate)
            if known is None:
                self.dims[candidate] = WrittenDim(candidate, value, text or str(value), about)
                return candidate
            if (known.value, known.about) == (value, about):
                return candidate
        raise AssertionError(name)

    def positions(self, window: str = "") -> str:
        """The dim of the positions that a cache holds, of all tokens or of the last ones of a window."""
        size = self.dims["S"].value
        if window:
            return self.dim("TW", size, f"and of one that keeps the last `{window}`", "S")
        about = "positions of a cache; a plan that serves says how many"
        return self.dim("TC", size, about, "S")

    def module(self, name: str, parameters: str, results: str = "", about: str = "") -> Module:
        """A new module, numbered if another has its name."""
        chosen = name
        number = 1
        while chosen in self.modules:
            number += 1
            chosen = f"{name}{number}"
        module = Module(chosen, parameters, results, about)
        self.modules[chosen] = module
        return module

    def op(self, name: str, text: str) -> str:
        """A declared op, once."""
        self.ops.setdefault(name, text)
        return name

    def even_batch(self) -> None:
        """Make the batch a multiple that gives experts a whole number of tokens, on each of many ranks."""
        if not self.shares:
            return
        batch, tokens = self.dims["B"], self.dims["S"].value
        parts = [RANKS * x // gcd(RANKS * x, a * tokens) for a, x in self.shares]
        self.dims["B"] = replace(batch, value=(size := lcm(batch.value, *parts)), text=str(size))

    def part(self, part: LayerPart) -> str:
        """The module of a part; equal parts have the same."""
        if part not in self.written:
            self.written[part] = part.write(self)
        return self.written[part]

    def elements(self, dims: Iterable[str]) -> int:
        product = 1
        for name in dims:
            product *= self.dims[name].value
        return product

    def text(self, header: str, model: Module, plans: Sequence[str]) -> str:
        """The file."""
        comments = "".join(f"# {line}".rstrip() + "\n" for line in header.split("\n"))
        parts = [comments, dim_lines(self.dims.values())]
        if self.requirements:
            parts.append("".join(f"require {r}\n" for r in self.requirements))
        parts += self.ops.values()
        parts += [self.modules[name].text() for name in self.order(model)]
        parts += [model.text("model"), *plans]
        return "\n".join(parts)

    def order(self, model: Module) -> list[str]:
        """Modules, each before those that call it."""
        found: list[str] = []

        def visit(module: Module) -> None:
            for callee in module.calls:
                if callee not in found:
                    visit(self.modules[callee])
                    found.append(callee)

        visit(model)
        assert set(found) == set(self.modules), set(self.modules) - set(found)
        return list(dict.fromkeys(found))


def dim_lines(dims: Iterable[WrittenDim]) -> str:
    """`dim` lines with their comments below each other."""
    rows = [(f"dim {d.name} = {d.text}", d.about) for d in dims]
    width = min(max(len(left) for left, _ in rows) + 2, 36)
    return "".join(f"{left:<{width}}# {about}".rstrip(" #") + "\n" for left, about in rows)
