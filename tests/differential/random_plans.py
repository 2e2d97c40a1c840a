"""Random models, plans and what to vary of them: few sizes, many features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from stagec.frontend import parse_text
from stagec.frontend.files import Source

ATTENTION = """module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, {k}, E], wv[D, {k}, E], wo[H, E, D]
  return attention({rope}(x @ wq), {rope}(x @ wk), x @ wv, causal = {causal}) @ wo
}}"""
MLPS = (
    """module Mlp(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}""",
    """module Mlp(x[B, S, D]) -> [B, S, D] {
  weight gate[D, F], up[D, F], down[F, D]
  return (silu(x @ gate) * (x @ up)) @ down
}""",
)
EXPERTS = """module Mlp(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  routed = dispatch(x, chosen, experts = X, tokens = N{dropless})
  h[X, N, F] = silu(routed @ up)
  y[X, N, D] = h @ down
  return combine(y, gates, chosen)
}"""
LIKE = {
    1: ("like = megatron", "like = deepspeed"),
    2: ("like = deepspeed", "shards = rows"),
    3: (
        "like = fsdp2",
        "like = deepspeed",
        "like = deepspeed, persist = 64",
        "persist = 600",
        "shards = flat",
    ),
}
"""Settings of `zero` by level."""
PRECISIONS = (
    "weights = bf16, gradients = fp32",
    "weights = bf16",
    "master = none",
    "weights = fp32, activations = bf16",
    "weights = bf16, products = fp8_1x128",
    "weights = bf16, products = mxfp8, product_weights = mxfp8",
    "weights = bf16, products = fp8, weight_gradients = bf16",
    "weights = bf16, products = fp4, product_weights = nvfp4",
    "weights = bf16, saved_values = [silu, gelu]",
)
OPTIMIZERS = (
    "adamw",
    "adamw",
    "sgd",
    "adafactor",
    "adamw { clip = 1 }",
    "adamw { clip = 1, loss_scale = dynamic }",
    "adam { bits = 8, average = fp32 }",
    "soap { block = 16, frequency = 10, clip = 1 }",
    "adagrad { tables = partial_rowwise_adam, clip = 1 }",
)
SCHEDULES = (
    "gpipe",
    "1f1b",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "dualpipe_v",
    "looped_bfs",
    "interleaved_1f1b",
    "forward_only",
)


@dataclass(frozen=True)
class Drawn:
    """A text with one plan `p`, and what to vary."""

    text: str
    varied: tuple[str, ...]
    """As behind `--sweep`."""
    plan: str = "p"
    """`p`, or a pool of it."""
    file: str = "random.stg"
    """Beside which imports and devices are looked for."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """As behind `--set`."""

    @property
    def source(self) -> Source:
        return parse_text(self.text, self.file)


def draw(rng: Random, device: str = "") -> Drawn:
    """A model, a plan and two to four names with values. `device` is a clause, if the plan is to have one."""
    pick = rng.choice
    has_experts = rng.random() < 0.25
    axes = ["dp", *(a for a in ("pp", "cp", "tp") if rng.random() < 0.5)]
    split_experts = has_experts and rng.random() < 0.6
    clauses = [f"mesh {', '.join(f'{a} = {pick((1, 2, 2, 4))}' for a in axes)}"]
    if split_experts:
        clauses.append("shard X over dp")
    clauses.append("shard B over dp")
    if has_experts:
        clauses.append("shard N over dp")
    if "tp" in axes:
        clauses += tensor_parallel(rng)
        if rng.random() < 0.5:
            clauses.append(f"shard S over {'cp, ' if 'cp' in axes else ''}tp")
    if "cp" in axes:
        if not any(c.startswith("shard S") for c in clauses):
            clauses.append("shard S over cp")
        method = pick(("ring", "all_gather", "ulysses"))
        clauses.append(
            f"context cp {{ method = {method}, balance = {pick(('head_tail', 'none'))} }}"
        )
    clauses += pipeline(rng) if "pp" in axes else []
    if "pp" not in axes and rng.random() < 0.7:
        clauses.append(f"microbatch {pick(('1', '2', 'B / dp', 'B / dp / 2'))}")
    if rng.random() < 0.08:
        clauses[clauses.index("shard B over dp")] = "shard B over dp { pad = 1 }"
    clauses += storage(rng)
    clauses += options(rng)
    if split_experts and not any(clause.startswith("collectives") for clause in clauses):
        clauses += exchanges(rng)
    if split_experts and "pp" in axes and rng.random() < 0.5:
        clauses.append("overlap { ep = true }")
    elif "tp" in axes and rng.random() < 0.3:
        clauses.append(f"overlap {{ tp = true, pieces = {pick(('2', '4'))} }}")
    overlaps = [each for each in clauses if each.startswith("overlap {")]
    if len(overlaps) > 1:
        inner = [each.removeprefix("overlap {").removesuffix("}").strip() for each in overlaps]
        clauses = [each for each in clauses if each not in overlaps]
        clauses.append(f"overlap {{ {', '.join(inner)} }}")
    if device:
        clauses.append(device)
    return Drawn(model(rng, has_experts, clauses), varied(rng, axes, clauses))


def model(rng: Random, has_experts: bool, clauses: Sequence[str]) -> str:
    pick = rng.choice
    attention = ATTENTION.format(
        k=pick("HK"), rope=pick(("rope", "")), causal=pick(("true", "false"))
    )
    norm = pick(("rms_norm", "layer_norm"))
    attended = f"Attention({norm}(x, n1))"
    if rng.random() < 0.3:
        attended = f"dropout({attended}, rate = 0.1)"
    tied = rng.random() < 0.2
    head = "embed" if tied else "head"
    loaded = any(clause.startswith("load") for clause in clauses)
    dropless = loaded or (has_experts and rng.random() < 0.3)
    experts = EXPERTS.replace("{dropless}", ", dropless = true" if dropless else "")
    weights = "embed[V, D], norm[D]" + ("" if tied else ", head[D, V]")
    return f"""dim B = {pick((8, 16))}
dim S = {pick((16, 24))}
dim D = {pick((16, 24))}
dim F = 4 * D
dim H = {pick((4, 8))}
dim K = {pick((2, 4))}
dim E = {pick((4, 8))}
dim V = {pick((32, 40))}
dim L = {pick((1, 2, 3, 4, 6, 8))}
dim X = 4
dim A = 2
dim N = B * S * A / X
require H % K == 0

{attention}

{experts if has_experts else pick(MLPS)}

module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], n2[D]
  h = x + {attended}
  return h + Mlp({norm}(h, n2))
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight {weights}
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy({norm}(x, norm) @ {head}, targets)
}}

plan p {{
  {chr(10).join(f"  {c}" for c in clauses).strip()}
}}
"""


def tensor_parallel(rng: Random) -> list[str]:
    """What `tp` splits, and what is done where it does not divide."""
    uneven = f" {{ uneven = {rng.choice(('balanced', 'chunk'))} }}"
    padded = rng.choice(("", "", "", " { pad = 1 }", " { pad = 3 }", uneven))
    if rng.random() < 0.2:
        shared = rng.choice(("", " { replicate = true }"))
        return [
            f"shard H, F over tp{padded}",
            f"shard K over tp{shared}",
            *rng.choice(((), ("shard V over tp { pad = 1 }",))),
        ]
    return [f"shard {rng.choice(('H, K, F, V', 'H, K, F', 'F, V'))} over tp{padded}"]


def pipeline(rng: Random) -> list[str]:
    schedule = rng.choice(SCHEDULES)
    settings = [f"schedule = {schedule}", f"microbatch = {rng.choice(('1', '2', 'B / dp / 4'))}"]
    if schedule in ("looped_bfs", "interleaved_1f1b"):
        settings.append(f"virtual_stages = {rng.choice(('1', '2', 'L / pp'))}")
    if rng.random() < 0.2:
        ends = ("first = -1, last = 1", "first = 1, last = -1", "last = 1", "first = 2 - pp")
        settings.append(rng.choice(ends))
    if rng.random() < 0.2:
        settings.append("scatter_gather = true")
    if rng.random() < 0.2:
        settings.append("first_backward = whole")
    if rng.random() < 0.2:
        settings.append(f"transfers = {rng.choice(('as_sent', 'batched'))}")
    return [f"pipeline L over pp {{ {', '.join(settings)} }}"]


def storage(rng: Random) -> list[str]:
    found: list[str] = []
    level = rng.choice((0, 0, 1, 2, 3, 3))
    if level:
        settings = rng.choice(("", "", " { reshard = false }", " { prefetch = 2 }"))
        like = rng.choice(("", "", *LIKE[level]))
        settings = f" {{ {like} }}" if like else settings if level == 3 else ""
        found.append(f"zero {level} over dp{settings}")
        if level == 3:
            found.append(rng.choice(("unit Block", "unit Block", "unit none")))
    if level in (1, 2) and rng.random() < 0.5:
        found.append("overlap { param_gather = true }")
    if level != 3 and rng.random() < 0.25:
        found.append(f"gradients {{ bucket_bytes = {rng.choice((1, 4, 64))}KiB }}")
    elif rng.random() < 0.2:
        found.append(
            f"gradients {{ reduce = {rng.choice(('step', 'microbatch'))}, overlap = false }}"
        )
    return found


def options(rng: Random) -> list[str]:
    found: list[str] = []
    choices = ("full in Block", "full", "attention", "gelu, silu", "h", "full in Mlp")
    if rng.random() < 0.4:
        found.append(f"recompute {rng.choice(choices)}")
    if rng.random() < 0.15:
        kept = rng.choice(("activations = inputs", "activations = all"))
        rest = rng.choice(("", ", optimizer = true", ", optimizer = true, parameters = true"))
        if rest and rng.random() < 0.5:
            rest += ", update = host"
        levels = ["activations", *["parameters"] * ("parameters" in rest)]
        levels += ["optimizer"] * ("update" in rest)
        if rng.random() < 0.5:
            below = rng.sample(levels, rng.randint(1, len(levels)))
            rest += f", nvme = [{', '.join(below)}]"
        found.append(f"offload {{ {kept}{rest} }}")
    if rng.random() < 0.25:
        found.append(f"collectives {{ keep = shard, reduce = {rng.choice(('lazy', 'eager'))} }}")
    if rng.random() < 0.15:
        found.append(f"loss_chunks {rng.choice(('2', '3', '4', 'S / 8'))}")
    if rng.random() < 0.1:
        frozen = ("embed", "Block.n1", "Attention", "wq, wo", "Mlp")
        found.append(f"freeze {rng.choice(frozen)}")
    if rng.random() < 0.7:
        found.append(f"precision {{ {rng.choice(PRECISIONS)} }}")
    found.append(f"optimizer {rng.choice(OPTIMIZERS)}")
    if rng.random() < 0.2:
        found.append("process { dummy_gradients = true, communicator = 1KiB }")
    return found


def exchanges(rng: Random) -> list[str]:
    """How tokens come to experts, and how many each has."""
    settings = ["exchange = all_gather"] if rng.random() < 0.4 else []
    settings += ["like = megatron"] if rng.random() < 0.4 else []
    found = [f"collectives {{ {', '.join(settings)} }}"] if settings else []
    if rng.random() < 0.3:
        found.append(f"load {{ zipf = {rng.choice(('0.5', '1.2'))}, seed = {rng.randrange(9)} }}")
    return found


def varied(rng: Random, axes: Sequence[str], clauses: Sequence[str]) -> tuple[str, ...]:
    values = {axis: "1,2,4" for axis in axes}
    values |= {"B": "8,16,24", "L": "1..8", "S": "15,16,24", "H": "2,4,6,8", "V": "32,40"}
    if not any("B /" in clause for clause in clauses):
        values["microbatch"] = "1,2,4"
    chosen = rng.sample(sorted(values), rng.choice((1, 2, 2, 3)))
    return tuple(f"{name}={values[name]}" for name in chosen)
