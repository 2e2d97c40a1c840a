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
from tests.fidelity.sublayers import LAST, linear_of, parts_of, reads_source, shapes_of, steps_of


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
    """What parts compute of `x` [B, S, D] and of their weights, by name: linear layers, or vectors and filters. `width` is that of a head."""

    torch: Any
    width: int

    def mlp(self, x, up, down):
        return down(self.torch.nn.functional.gelu(up(x)))

    def early(self, x, first, up, down):
        return self.mlp(x, up, down) * first

    def relu2(self, x, up, down):
        return down(self.torch.nn.functional.relu(up(x)).square())

    def biased(self, x, up, shift, down, last):
        f = self.torch.nn.functional
        return f.linear(f.silu(f.linear(x, up.weight, shift)), down.weight, last)

    def gated(self, x, gate, up, down):
        return down(self.torch.nn.functional.gelu(gate(x)) * up(x))

    def narrow(self, x, a, b):
        return b(a(x))

    def gate(self, x, gate):
        return x * gate(x).sigmoid()

    def twice(self, x, up, down):
        return self.mlp(self.mlp(x, up, down), up, down)

    def tied(self, x, up):
        return self.torch.nn.functional.gelu(up(x)) @ up.weight

    def scaled(self, x, up, down, scale):
        return self.mlp(x, up, down) * scale

    def mixer(self, x, mix, back):
        mixed = self.torch.nn.functional.gelu(mix.weight.expand(len(x), *mix.weight.shape) @ x)
        return back.weight.expand(len(x), *back.weight.shape) @ mixed

    def squeeze(self, x, a, b):
        gates = b(self.torch.nn.functional.relu(a(x.mean(1)))).sigmoid()
        return x * gates[:, None]

    def conv(self, x, filter, gate):
        f = self.torch.nn.functional
        padded = f.pad(x.transpose(1, 2), (len(filter) - 1, 0))
        seen = f.conv1d(padded, filter.t()[:, None], groups=x.shape[-1])
        return f.silu(seen.transpose(1, 2)) * gate(x)

    def heads_of(self, x, weight):
        made = weight(x)
        return made.view(*x.shape[:2], -1, self.width).transpose(1, 2)

    def attended(self, q, k, v, out, causal=True):
        f = self.torch.nn.functional
        grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=causal, **grouped)
        return out(mixed.transpose(1, 2).flatten(2))

    def heads(self, x, q, k, v, out):
        queries, keys, values = (self.heads_of(x, weight) for weight in (q, k, v))
        return self.attended(queries, keys, values, out)

    def cross(self, x, source, q, k, v, out):
        keys, values = self.heads_of(source, k), self.heads_of(source, v)
        return self.attended(self.heads_of(x, q), keys, values, out, causal=False)

    def shared(self, x, qv, out):
        made = self.heads_of(x, qv)
        return self.attended(made, made, made, out)

    def linear(self, x, q, k, v, out):
        f = self.torch.nn.functional
        keys, values = f.silu(self.heads_of(x, k)), self.heads_of(x, v)
        keyed = keys.transpose(2, 3) @ values
        mixed = f.silu(self.heads_of(x, q)) @ keyed
        return out(mixed.transpose(1, 2).flatten(2))


def with_other_blocks(tool: Any) -> None:
    """Make the tool's models of the blocks that cases say."""
    torch = tool.torch

    class Part(torch.nn.Module):
        def __init__(self, m, kind, part, sizes):
            super().__init__()
            self.kind, self.parts = kind, Parts(torch, m.head_dim)
            self.names = list(part.weights)
            for name, shape, is_linear in zip(self.names, sizes, linear_of(part), strict=True):
                own = torch.nn.Linear(*reversed(shape), bias=False) if is_linear else None
                setattr(self, name, own or torch.nn.Parameter(torch.randn(shape) * 0.02))

        def forward(self, *x):
            weights = {name: getattr(self, name) for name in self.names}
            return getattr(self.parts, self.kind)(*x, **weights)

    class Block(torch.nn.Module):
        def __init__(self, m, experts_over=()):
            super().__init__()
            case = Case("", vars(m), {}, {}, 1, {}, {}, {})
            self.steps = steps_of(case)
            self.names = [name for name, *_ in parts_of(case)]
            parts = iter(parts_of(case))
            # In the order of use: DDP has gradients of DTensors in the reverse of the order in which parameters are registered.
            for n, step in enumerate(self.steps):
                setattr(self, f"norm_{n}", tool.RMSNorm(m.norm, m.dim))
                for kind, (name, _, part) in zip(step, parts, strict=False):
                    is_routed = kind == "experts"
                    made = Part(m, kind, part, shapes_of(case, part)) if not is_routed else None
                    setattr(self, name, made or tool.Experts(m, *experts_over))

        @property
        def ffn(self):
            """Where the tool looks for experts."""
            return next(part for part in self.children() if isinstance(part, tool.Experts))

        def forward(self, x, cos, sin, source=None):
            names, first = iter(self.names), None
            for number, step in enumerate(self.steps):
                n = getattr(self, f"norm_{number}")(x)
                first = n if first is None else first
                for kind in step:
                    read = {"early": (n, first), "cross": (n, source)}.get(kind, (n,))
                    x = x + getattr(self, next(names))(*read)
            return x

    class Transformer(tool.Transformer):
        def __init__(self, m, *others, **named):
            super().__init__(m, *others, **named)
            case = Case("", vars(m), {}, {}, 1, {}, {}, {})
            self.source = tool.RMSNorm(m.norm, m.dim) if reads_source(case) else None
            # In the order of use, as in `Block`.
            for name in [each for each in ("blocks", "norm", "head") if each in self._modules]:
                self._modules[name] = self._modules.pop(name)
            for name in filter(None, m.frozen.split("+")):
                for owner in (self, *self.blocks):
                    if (module := getattr(owner, name, None)) is not None:
                        module.requires_grad_(False)
            if m.losses > 1:
                tool.criterion = lambda logits, targets: (
                    cross_entropy(logits, targets) + 0.01 * logits.float().square().mean()
                )

        def forward(self, x):
            if self.embed is not None:
                x = self.embed(x)
            given = () if self.source is None else (self.source(x),)
            for block in self.blocks:
                x = block(x, self.cos, self.sin, *given)
            return x if self.head is None else self.head(self.norm(x))

    class Job(tool.Job):
        def split_tensors(self, model):
            super().split_tensors(model)
            inside = tool.Shard(1) if self.case.sequence_parallel else tool.Replicate()
            gathers = inside != tool.Replicate() or "tp_mode" in self.case.parallel
            whole = [tool.SequenceParallel()] if self.case.sequence_parallel else []
            if whole and model.source is not None:
                tool.parallelize_module(model, self.mesh["tp"], {"source": whole[0]})
            for block in model.blocks:
                plan = {f"norm_{n}": each for each in whole for n in range(len(block.steps))}
                for name, part in [(name, getattr(block, name)) for name in block.names]:
                    number = 2 if part.kind == "cross" else 1
                    if gathers:
                        plan[name] = tool.PrepareModuleInput(
                            input_layouts=(inside,) * number,
                            desired_input_layouts=(tool.Replicate(),) * number,
                        )
                    rows = tool.RowwiseParallel(output_layouts=inside)
                    for weight in part.names:
                        plan[f"{name}.{weight}"] = (
                            rows if weight in LAST else tool.ColwiseParallel()
                        )
                tool.parallelize_module(block, self.mesh["tp"], plan)

        def shard(self, model, mesh):
            if self.case.parallel.get("fsdp_group") != "parts":
                return super().shard(model, mesh)
            reshards = bool(self.case.parallel.get("reshard", True))
            for block in map(tool.unwrapped, model.blocks):
                for name in block.names:
                    part = getattr(block, name)
                    tool.fully_shard(part, mesh=mesh, reshard_after_forward=reshards)
            tool.fully_shard(model, mesh=mesh, reshard_after_forward=None if reshards else False)
            for module in model.modules():
                if isinstance(module, tool.FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
            return model

    cross_entropy = tool.criterion
    fields = [("sublayers", str, ""), ("frozen", str, ""), ("losses", int, 1)]
    tool.Model = make_dataclass("Model", fields, bases=(tool.Model,))
    tool.Block, tool.Transformer, tool.Job = Block, Transformer, Job


def main() -> int:
    tool = loaded(Path(sys.argv.pop(1)))
    with_other_blocks(tool)
    return tool.main()


if __name__ == "__main__":
    sys.exit(main())
