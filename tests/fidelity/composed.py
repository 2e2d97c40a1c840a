"""PyTorch's runs of blocks of other parts: `python -m tests.fidelity.composed CAPTURE_TOOL OUT --cases FILE`.

The capture tool runs them as it runs its own models, with another block: `sublayers` says of which parts, and `frozen` which of them are not trained.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.fidelity.oracle import Case
from tests.fidelity.sublayers import parts_of, shapes_of, steps_of


def loaded(path: Path) -> ModuleType:
    """The capture tool as a module."""
    spec = importlib.util.spec_from_file_location("capture_tool", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["capture_tool"] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Parts:
    """What parts compute of `x` [B, S, D] and of their weights, by name. `heads` and `kv_heads` are numbers of heads."""

    torch: Any
    heads: int
    kv_heads: int

    def mlp(self, x, up, down):
        f = self.torch.nn.functional
        return f.linear(f.gelu(f.linear(x, up)), down)

    def relu2(self, x, up, down):
        f = self.torch.nn.functional
        return f.linear(f.relu(f.linear(x, up)).square(), down)

    def biased(self, x, up, shift, down, last):
        f = self.torch.nn.functional
        return f.linear(f.silu(f.linear(x, up, shift)), down, last)

    def gated(self, x, gate, up, down):
        f = self.torch.nn.functional
        return f.linear(f.gelu(f.linear(x, gate)) * f.linear(x, up), down)

    def narrow(self, x, a, b):
        f = self.torch.nn.functional
        return f.linear(f.linear(x, a), b)

    def gate(self, x, gate):
        return x * self.torch.nn.functional.linear(x, gate).sigmoid()

    def twice(self, x, up, down):
        return self.mlp(self.mlp(x, up, down), up, down)

    def tied(self, x, up):
        f = self.torch.nn.functional
        return f.gelu(f.linear(x, up)) @ up

    def scaled(self, x, up, down, scale):
        return self.mlp(x, up, down) * scale

    def mixer(self, x, mix, back):
        mixed = self.torch.nn.functional.gelu(mix.expand(len(x), *mix.shape) @ x)
        return back.expand(len(x), *back.shape) @ mixed

    def squeeze(self, x, a, b):
        f = self.torch.nn.functional
        gates = f.linear(f.relu(f.linear(x.mean(1), a)), b).sigmoid()
        return x * gates[:, None]

    def heads_of(self, x, weight, number):
        made = self.torch.nn.functional.linear(x, weight)
        return made.view(*x.shape[:2], number, -1).transpose(1, 2)

    def attended(self, q, k, v, out):
        f = self.torch.nn.functional
        grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        return f.linear(mixed.transpose(1, 2).flatten(2), out)

    def __getitem__(self, name):
        return getattr(self, f"of_{name}", None) or getattr(self, name)

    def of_heads(self, x, q, k, v, out):
        queries = self.heads_of(x, q, self.heads)
        keys, values = (self.heads_of(x, weight, self.kv_heads) for weight in (k, v))
        return self.attended(queries, keys, values, out)

    def shared(self, x, qv, out):
        made = self.heads_of(x, qv, self.heads)
        return self.attended(made, made, made, out)

    def linear(self, x, q, k, v, out):
        f = self.torch.nn.functional
        keys, values = f.silu(self.heads_of(x, k, self.heads)), self.heads_of(x, v, self.heads)
        keyed = keys.transpose(2, 3) @ values
        mixed = f.silu(self.heads_of(x, q, self.heads)) @ keyed
        return f.linear(mixed.transpose(1, 2).flatten(2), out)


def with_other_blocks(tool: Any) -> None:
    """Make the tool's models of the blocks that cases say."""
    torch = tool.torch

    class Block(torch.nn.Module):
        def __init__(self, m, experts_over=()):
            super().__init__()
            case = Case("", vars(m), {}, {}, 1, {}, {}, {})
            self.steps, self.parts = steps_of(case), Parts(torch, m.heads, m.kv_heads)
            self.names = [name for name, *_ in parts_of(case)]
            self.norms = torch.nn.ModuleList(tool.RMSNorm(m.norm, m.dim) for _ in self.steps)
            for name, _, part in parts_of(case):
                shapes = shapes_of(case, part)
                own = [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes]
                setattr(self, name, torch.nn.ParameterList(own))

        def forward(self, x, *tables):
            names = iter(self.names)
            for norm, step in zip(self.norms, self.steps, strict=True):
                n = norm(x)
                for kind in step:
                    x = x + self.parts[kind](n, *getattr(self, next(names)))
            return x

    class Transformer(tool.Transformer):
        def __init__(self, m, *others, **named):
            super().__init__(m, *others, **named)
            for name in filter(None, m.frozen.split("+")):
                for owner in (self, *self.blocks):
                    if (module := getattr(owner, name, None)) is not None:
                        module.requires_grad_(False)

    fields = [("sublayers", str, ""), ("frozen", str, "")]
    tool.Model = make_dataclass("Model", fields, bases=(tool.Model,))
    tool.Block, tool.Transformer = Block, Transformer


def main() -> int:
    tool = loaded(Path(sys.argv.pop(1)))
    with_other_blocks(tool)
    return tool.main()


if __name__ == "__main__":
    sys.exit(main())
