"""What lies in memory so that PyTorch's kernels load no vectors of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stagec.analysis.contiguity import is_rearranged
from stagec.devices import named
from stagec.dialects.sched.actions import Compute
from stagec.dialects.types import Dim
from stagec.driver import compile_text
from stagec.estimate.prices import Prices
from tests.unit.seldom import some


def drawn(rng: random.Random) -> tuple[dict[str, int], str, str, np.ndarray]:
    """Sizes, the dims of a tensor and of a view of it, and that view in NumPy."""
    names = "ABCD"[: rng.randint(1, 4)]
    sizes = {name: rng.randint(1, 4) for name in "ABCDE"}
    memory = np.zeros([sizes[name] for name in names])
    if rng.random() < 0.5:
        at = rng.randrange(len(names))
        sizes["E"] = rng.randint(1, sizes[names[at]])
        part = memory[(slice(None),) * at + (slice(sizes["E"]),)]
        return sizes, names, names[:at] + "E" + names[at + 1 :], part
    others = names + "E" * rng.randint(0, 1)
    order = rng.sample(others, len(others))
    repeated = np.broadcast_to(memory[..., None], [*memory.shape, sizes["E"]])
    whole = repeated if "E" in others else memory
    return sizes, names, "".join(order), whole.transpose([others.index(name) for name in order])


@pytest.mark.parametrize("seed", range(300))
def test_a_view_is_contiguous_where_it_is_in_numpy(seed: int) -> None:
    sizes, before, after, view = drawn(random.Random(seed))
    found = is_rearranged(*(tuple(Dim(name) for name in names) for names in (before, after)))
    assert found.evaluate(sizes) == (not view.flags.c_contiguous)


TEXT = """
dim B = 64
dim S = 256
dim D = 512
dim F = D
dim G = D + F
dim T = S
dim N = S + T
model Net(a[B, S, D], b[B, S, D], wide[B, S, D]: fp32, both[B, S, G], long[N, D], mask[S, D], row[B, S]) {{
  first, second = split(both, over = G, to = [D, F])
  upper, lower = split(long, over = N, to = [S, T])
  weight w[D]
  made = {made}
  loss = sum(made * w, over = [B, S, D])
}}
plan p {{ mesh dp = 1
  precision {{ weights = bf16, activations = bf16 }}
  device {device} {{ kernels = {kernels} }} }}
"""
MADE = (
    ("a + b", False),
    ("a * 2", False),
    ("a * mask", True),
    ("a * row", True),
    ("exp(first)", True),
    ("a * second[F -> D]", True),
    ("exp(upper) * a", False),
    ("cast(a, dtype = fp32)", True),
    ("cast(wide, dtype = bf16)", False),
    ("a + wide", True),
    ("rope(first)", False),
)
"""What is made of contiguous operands and others, and whether PyTorch's kernel computes it element by element."""


@pytest.mark.parametrize(("made", "is_apart"), some(MADE, 3))
def test_eager_kernels_load_vectors_of_what_is_contiguous_and_keeps_its_dtype(
    made: str, is_apart: bool
) -> None:
    device = random.Random(made).choice(["a100", "h100", "b200"])
    known, elements = named(device), 64 * 256 * 512
    first = made.partition("(")[0] if "(" in made else {"+": "add", "*": "mul"}[made.split()[1]]
    op = {"exp": "unary"}.get(first, first)
    for kernels in ("eager", "compiled", "fused"):
        done = compile_text(TEXT.format(made=made, device=device, kernels=kernels))
        prices = Prices.of(done.trace_set, done.plan)
        assert prices.kernels is not None
        nodes = [n for s in done.trace_set.classes[0].program.segments for n in s.nodes]
        node = next(n for n in nodes if n.op == op and n.phase == "fwd")
        assert isinstance(node.action, Compute)
        us = prices.kernels.measured.moved(node.action.num_bytes, node.action.num_ops).us
        if is_apart and kernels == "eager":
            us = max(us, 1e6 * elements / known.scalars_per_s + known.launch_us)
        assert prices.node(node).us == pytest.approx(us)
