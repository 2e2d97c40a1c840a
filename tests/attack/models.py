"""Small models of every family, and random plans for them: most of them nobody would write."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.unit.model_texts import EXPERTS

HEAD = """
dim B = 24
dim S = 24
dim D = 48
dim H = 8
dim K = 4
dim E = 12
dim F = 96
dim V = 96
dim L = 4
"""

SMALL_HEAD = HEAD.replace("B = 24", "B = 12").replace("S = 24", "S = 12")

ATTENTION = """
module Mlp(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}
module Attention(x[B, S, D]) -> [B, S, D] {
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  return attention(rope(x @ wq), rope(x @ wk), x @ wv, causal = true) @ wo
}
"""

END = """
model Net(tokens[B, S]: i32, targets[B, S]: i32) {
  weight embed[V, D], norm[D], head[D, V]
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(rms_norm(x, norm) @ head, targets)
}
"""

MODELS = {
    "dense": f"""{HEAD}{ATTENTION}
module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], n2[D]
  h = x + Attention(rms_norm(x, n1))
  return h + Mlp(rms_norm(h, n2))
}}
{END}""",
    "tied": f"""{HEAD}{ATTENTION}
module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], b1[D]
  n = layer_norm(x, n1, b1)
  return x + Attention(n) + Mlp(n)
}}
model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], norm[D]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(rms_norm(x, norm) @ embed, targets)
}}
""",
    "experts": f"""{HEAD}
dim X = 8
dim A = 2
dim N = B * S * A / X
{ATTENTION}
{EXPERTS}
module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], n2[D]
  h = x + Attention(rms_norm(x, n1))
  return h + Experts(rms_norm(h, n2))
}}
{END}""",
    "matrices": f"""{HEAD}
module Block(x[B, D]) -> [B, D] {{
  weight up[D, F], down[F, D]
  return x + relu(x @ up) @ down
}}
model Net(x[B, D]) {{
  weight last[D]
  y = x
  repeat L {{ y = Block(y) }}
  loss = sum(y * last, over = [B, D])
}}
""",
    "attention": f"""{SMALL_HEAD}
module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, K, E], wv[D, K, E], wo[H, E, D]
  return attention(x @ wq, x @ wk, x @ wv, causal = true) @ wo
}}
model Net(x[B, S, D]) {{
  weight last[D]
  repeat L {{ x = x + Attention(x) }}
  loss = sum(x * last, over = [B, S, D])
}}
""",
    "words": f"""{SMALL_HEAD}
module Mlp(x[B, S, D]) -> [B, S, D] {{
  weight up[D, F], down[F, D]
  return relu(x @ up) @ down
}}
model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight embed[V, D], head[D, V]
  x = embedding(tokens, embed)
  repeat L {{ x = Mlp(x) }}
  loss = cross_entropy(x @ head, targets)
}}
""",
}
SMALL = ("matrices", "attention", "words")
"""Of few ops: what most random cases are made of, for there are many more of them in a minute."""
DIMS = {
    "attention": ("B", "S", "D", "H", "K"),
    "words": ("B", "S", "D", "F", "V"),
    "dense": ("B", "S", "D", "H", "K", "F", "V"),
    "tied": ("B", "S", "D", "H", "K", "F", "V"),
    "experts": ("B", "S", "D", "H", "K", "F", "V", "X", "N"),
    "matrices": ("B", "D", "F"),
}
VALUES = (
    "Block.h",
    "Block.x",
    "Attention.wq",
    "Mlp.up",
    "embed",
    "head",
    "Experts.routed",
    "Experts.h",
    "norm",
)
SCHEDULES = (
    "gpipe",
    "1f1b",
    "interleaved_1f1b",
    "looped_bfs",
    "zb_h1",
    "zb_v",
    "dualpipe",
    "dualpipe_v",
)
MOST_RANKS = 16


@dataclass
class _Plan:
    draw: random.Random
    axes: dict[str, int]
    dims: tuple[str, ...]

    def some_axes(self, most: int = 2) -> str:
        names = list(self.axes)
        return ", ".join(self.draw.sample(names, min(len(names), self.draw.randint(1, most))))

    def often(self, share: float = 0.5) -> bool:
        return self.draw.random() < share


def random_model(draw: random.Random) -> str:
    """The name of a model: a small one three times out of four."""
    return draw.choice(SMALL if draw.random() < 0.75 else list(MODELS))


def random_plan(draw: random.Random, model: str) -> str:
    """A plan of a model, as text. Its axes are mostly used as users use them, sometimes not at all so."""
    axes: dict[str, int] = {}
    ranks = 1
    for name in draw.sample(["dp", "tp", "cp", "pp", "ep"], draw.randint(1, 3)):
        size = draw.choice((2, 2, 2, 3, 4))
        if ranks * size <= MOST_RANKS:
            axes[name], ranks = size, ranks * size
    plan = _Plan(draw, axes, DIMS[model])
    lines = [f"mesh {', '.join(f'{n} = {s}' for n, s in axes.items())}"]
    lines += usual_rules(plan, model)
    if plan.often(0.3):
        dims = ", ".join(draw.sample(plan.dims, draw.randint(1, 2)))
        lines.insert(draw.randint(1, len(lines)), f"shard {dims} over {plan.some_axes()}")
    if plan.often(0.15):
        target = f"{draw.choice(VALUES)}[{draw.choice(plan.dims)}]"
        lines.append(f"shard {target} over {draw.choice(['none', plan.some_axes(1)])}")
    lines += clauses(plan)
    return "\nplan p {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def usual_rules(plan: _Plan, model: str) -> list[str]:
    draw, axes, found = plan.draw, plan.axes, list[str]()
    batch = [a for a in ("dp", "ep") if a in axes and plan.often(0.9)]
    if batch:
        found.append(f"shard B over {', '.join(batch)}")
    if model == "experts" and "ep" in axes:
        found += [
            "shard X over ep",
            f"shard N over {', '.join(batch)}" if batch else "shard N over ep",
        ]
    if "tp" in axes and plan.often(0.9):
        split = [d for d in ("H", "K", "F", "V") if d in plan.dims]
        found.append(f"shard {', '.join(split)} over tp")
    sequence = [a for a in ("cp", "tp") if a in axes and (a == "cp" or plan.often())]
    if sequence and "S" in plan.dims:
        found.append(f"shard S over {', '.join(sequence)}")
    if "cp" in axes and "S" in plan.dims:
        rotate = draw.choice(("send_recv", "all_gather", "all_to_all"))
        balance = draw.choice(("none", "head_tail"))
        found.append(f"context cp {{ rotate = {rotate}, balance = {balance} }}")
    if "pp" in axes and plan.often(0.9):
        settings = [f"microbatch = {draw.choice((1, 2, 3))}"]
        schedule = draw.choice(SCHEDULES)
        settings.append(f"schedule = {schedule}")
        if schedule in ("interleaved_1f1b", "looped_bfs"):
            settings.append("virtual_stages = 2")
        if plan.often(0.2):
            settings.append("scatter_gather = true")
        if plan.often(0.2):
            settings.append(f"transfers = {draw.choice(('as_sent', 'batched'))}")
        found.append(f"pipeline L over pp {{ {', '.join(settings)} }}")
    return found


def clauses(plan: _Plan) -> list[str]:
    draw, found = plan.draw, list[str]()
    if plan.often():
        holders = [a for a in ("dp", "cp", "ep") if a in plan.axes] or list(plan.axes)
        axes = ", ".join(draw.sample(holders, draw.randint(1, len(holders))))
        found.append(
            f"zero {draw.randint(1, 3)} over {axes if plan.often(0.9) else plan.some_axes()}"
        )
        if plan.often(0.3):
            found.append(f"unit {draw.choice(('none', 'Block', 'Attention', 'Block, Mlp'))}")
    if plan.often(0.4):
        settings = [f"overlap = {draw.choice(('true', 'false'))}"]
        if plan.often():
            settings.append(f"reduce = {draw.choice(('step', 'microbatch'))}")
        if plan.often():
            settings.append(f"bucket_bytes = {draw.choice((64, 4096, 1 << 20))}")
        found.append(f"gradients {{ {', '.join(settings)} }}")
    if plan.often(0.3):
        kinds = draw.sample(["zero", "tp", "p2p"], draw.randint(1, 3))
        found.append(
            "overlap { "
            + ", ".join(f"{k} = {draw.choice(('true', 'false'))}" for k in kinds)
            + " }"
        )
    if plan.often(0.3):
        found.append(
            f"recompute {draw.choice(('full', 'full in Block', 'attention', 'rms_norm', 'Attention.wq'))}"
        )
    if plan.often(0.2):
        found.append(f"loss_chunks {draw.choice((2, 3, 4))}")
    if plan.often(0.3):
        reduce, keep = draw.choice(("lazy", "eager")), draw.choice(("gathered", "shard"))
        found.append(f"collectives {{ reduce = {reduce}, keep = {keep} }}")
    if plan.often(0.4):
        found.append(
            "precision { weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }"
        )
    if plan.often(0.3):
        found.append(f"optimizer {draw.choice(('adamw', 'sgd', 'adam'))}")
    if plan.often(0.2) and not any(a == "pp" for a in plan.axes):
        found.append(f"microbatch {draw.choice((1, 2, 3, 4))}")
    if plan.often(0.1):
        found.append(
            f"offload {{ {draw.choice(('optimizer = true', 'parameters = true', 'activations = all'))} }}"
        )
    return found
