"""Shampoo and SOAP: products and states against Facebook's `distributed_shampoo`, and what ranks keep and compute against loops over blocks."""

from __future__ import annotations

import random
from math import prod

import pytest

from stagec.dialects.sched.actions import Collective, Compute
from stagec.dialects.work import Work
from stagec.driver import Compiled, compile_text
from stagec.memory.kinds import Kind
from tests.fidelity.totals import nodes_of
from tests.unit.seldom import some
from tests.unit.test_muon import MODEL, gradient_bytes

# `facebookresearch/optimizers` at the time of writing, PyTorch 2.13: FLOPs of a step by `torch.utils.flop_counter.FlopCounterMode`, and bytes of all tensors of
# its state but for the step's number. It counts products, and neither eigenvectors of symmetric matrices nor QR factorizations.
DISTRIBUTED_SHAMPOO = {
    ("shampoo", (64, 48), 64): (2_121_728, 38_336),
    ("soap", (64, 48), 64): (5_734_400, 63_200),
    ("shampoo", (100, 40), 32): (1_588_992, 59_552),
    ("soap", (100, 40), 32): (4_497_408, 95_888),
    ("shampoo", (50, 34), 16): (347_568, 25_464),
    ("soap", (50, 34), 16): (973_888, 40_452),
    ("shampoo", (8, 130), 64): (1_347_216, 38_328),
    ("soap", (8, 130), 64): (4_797_760, 58_956),
    ("shampoo", (20,), 8): (2_752, 736),
    ("soap", (20,), 8): (9_856, 1_064),
}
UNCOUNTED = {"shampoo": 9, "soap": 8 / 3}
"""FLOPs that its counter knows nothing of, in n^3 of a side of n."""


def sides(size: int, block: int) -> list[int]:
    return [min(block, size - first) for first in range(0, size, block)]


def blocks(shape: tuple[int, ...], block: int) -> list[tuple[int, ...]]:
    if len(shape) == 1:
        return [(r,) for r in sides(shape[0], block)]
    return [(r, c) for r in sides(shape[0], block) for c in sides(shape[1], block)]


def products(algorithm: str, block: tuple[int, ...]) -> int:
    """FLOPs with factors, without what makes them."""
    one = sum(
        2 * size * size * (block[1 - at] if len(block) > 1 else 1) for at, size in enumerate(block)
    )
    return one * {"shampoo": 2, "soap": 4}[algorithm]


def decompositions(algorithm: str, block: tuple[int, ...]) -> int:
    """Three times their FLOPs."""
    return sum({"shampoo": 3 * 11, "soap": 32}[algorithm] * size**3 for size in block)


def kept(algorithm: str, block: tuple[int, ...]) -> int:
    """Bytes of factors."""
    halves = sum(size * (size + 1) // 2 for size in block)
    other = halves if algorithm == "shampoo" else sum(size * size for size in block)
    return 4 * (halves + other)


@pytest.mark.parametrize(("algorithm", "shape", "block"), some(DISTRIBUTED_SHAMPOO, 3))
def test_blocks_are_those_of_distributed_shampoo(
    algorithm: str, shape: tuple[int, ...], block: int
) -> None:
    """One weight by itself, as its own optimizer has it."""
    flops, states = DISTRIBUTED_SHAMPOO[algorithm, shape, block]
    found = blocks(shape, block)
    known = sum(products(algorithm, each) for each in found)
    uncounted = UNCOUNTED[algorithm]
    known += sum(
        decompositions(algorithm, each) / 3 - sum(uncounted * n**3 for n in each) for each in found
    )
    assert known == pytest.approx(flops)
    elements = prod(shape)
    averages = {"shampoo": 4, "soap": 8}[algorithm] * elements
    assert averages + sum(kept(algorithm, each) for each in found) == states
    dims = ", ".join("NM"[: len(shape)])
    sizes = "\n".join(f"dim {name} = {size}" for name, size in zip("NM", shape, strict=False))
    text = f"""
{sizes}
model Q(x[N]) {{
  weight w[{dims}]
  y = {"x @ w" if len(shape) > 1 else "x * w"}
  loss = mean(y, over = [{"M" if len(shape) > 1 else "N"}])
}}
plan p {{ optimizer {algorithm} {{ block = {block} }} }}
"""
    made = compile_text(text)
    assert state_bytes(made) == states
    each = {"shampoo": 3, "soap": 9}[algorithm]
    ours = sum(products(algorithm, b) for b in found)
    ours += -(-sum(decompositions(algorithm, b) for b in found) // 3)
    assert flops_of_a_rank(made) == ours + each * elements


@pytest.mark.parametrize("algorithm", some(UNCOUNTED, 4))
@pytest.mark.parametrize("stored", ["w[M, N |]", "w[M, N]"])
def test_small_matrices_and_biases_are_vectors(algorithm: str, stored: str) -> None:
    """A matrix of no more elements than a block has rows has one factor, and so has what a module stores as a vector, whatever dims the text gives it."""

    def made(weight: str, block: int) -> Compiled:
        text = f"""
dim N = 6
dim M = 8
dim P = 48
model Q(x[{weight[2:-1].replace(" |", "")}]) {{
  weight {weight}
  loss = mean(x * w, over = [{weight[2:-1].replace(" |", "")}])
}}
plan p {{ optimizer {algorithm} {{ block = {block} }} }}
"""
        return compile_text(text)

    for block in (16, 47, 48, 64):
        known, found = made("w[P]", block), made(stored, block)
        same = state_bytes(found) == state_bytes(known)
        assert same == ("|" in stored or block >= 48)
        assert (flops_of_a_rank(found) == flops_of_a_rank(known)) == same


def state_bytes(compiled: Compiled) -> int:
    return compiled.memory[0].static.num_bytes[Kind.OPTIMIZER]


def flops_of_a_rank(compiled: Compiled) -> int:
    return sum(
        count * node.action.num_ops
        for node, count in nodes_of(compiled.trace_set.classes[0])
        if isinstance(node.action, Compute) and node.action.work == Work.PRECONDITIONING
    )


@pytest.mark.parametrize("seed", some(range(6), 3))
def test_ranks_have_blocks_of_what_they_store(seed: int) -> None:
    """Without ZeRO all blocks of what tensor parallelism leaves them; under ZeRO 1 an equal share of these; under ZeRO 3 those of their own outputs."""
    draw = random.Random(seed)
    algorithm = draw.choice(("shampoo", "soap"))
    zero = (1, 3, 0)[seed % 3]
    dp, tp = draw.choice((2, 4)), draw.choice((1, 2))
    words, width, inner = 128, 16 * draw.randint(1, 5), 16 * draw.randint(1, 5)
    layers, block, frequency = draw.randint(2, 3), draw.randint(5, 40), draw.choice((1, 3, 10))
    graft = algorithm == "shampoo" and draw.random() < 0.5
    sizes = {"batch": 16, "width": width, "inner": inner, "layers": layers, "dp": dp, "tp": tp}
    text = MODEL.format(**sizes, zero=zero, steps=1).replace("zero 0 over dp", "zero none")
    settings = f"block = {block}, frequency = {frequency}{', graft = true' if graft else ''}"
    text = text.replace("muon { steps = 1 }", f"{algorithm} {{ {settings} }}")
    made = compile_text(text)
    # Outputs, or words, first; the table and the head are of one shape. Sizes are multiples of all numbers of ranks.
    shapes: list[tuple[tuple[int, ...], int]] = [
        ((words, width), 1),
        ((words, width), 1),
        ((inner // tp, width), layers),
        ((width, inner // tp), layers),
        ((width,), layers),
    ]
    elements = sum(count * prod(shape) for shape, count in shapes) // (dp if zero else 1)
    ways = dp if zero == 1 else 1
    if zero == 3:
        shapes = [((shape[0] // dp, *shape[1:]), count) for shape, count in shapes]
    cut = [(blocks(shape, block), count) for shape, count in shapes]
    averages = {"shampoo": 4 + 4 * graft, "soap": 8}[algorithm]
    factors = sum(-(-count * sum(kept(algorithm, b) for b in each) // ways) for each, count in cut)
    assert state_bytes(made) == averages * elements + factors
    assert gradient_bytes(made) == 4 * elements * (dp if zero == 1 else 1)

    def cost(of: list[tuple[int, ...]], count: int = 1) -> int:
        """FLOPs of blocks."""
        every = count * sum(products(algorithm, b) for b in of)
        decomposed = count * sum(decompositions(algorithm, b) for b in of)
        return every + -(-decomposed // (3 * frequency))

    busiest = -(-sum(cost(each, count) for each, count in cut) // ways)
    if ways > 1:
        busiest = max(busiest, *(cost(each[:1]) for each, _ in cut))
    each = {"shampoo": 3 + 10 * graft, "soap": 9}[algorithm]
    assert flops_of_a_rank(made) == busiest + each * elements


@pytest.mark.seldom
@pytest.mark.parametrize("algorithm", ["shampoo", "soap"])
def test_replicas_of_shards_deal_their_blocks_out(algorithm: str) -> None:
    """Each of three has a third of the states and of the FLOPs, and all gather what is subtracted, in fp32 (`HybridShardDistributor`)."""
    sizes = {"batch": 24, "width": 48, "inner": 64, "layers": 3, "tp": 1}
    text = MODEL.format(**sizes, dp=4, zero=3, steps=1).replace(
        "muon { steps = 1 }", f"{algorithm} {{ block = 8 }}"
    )
    alone = compile_text(text)
    shared = text.replace("mesh dp = 4", "mesh rep = 3, dp = 4")
    shared = shared.replace("shard B over dp", "shard B over rep, dp")
    dealt = compile_text(shared)
    # Rounded up weight by weight, of factors and of averages.
    assert state_bytes(dealt) == pytest.approx(state_bytes(alone) / 3, abs=3 * 5 * 8)
    assert flops_of_a_rank(dealt) == pytest.approx(flops_of_a_rank(alone) / 3, rel=0.001)
    (ranks,) = dealt.trace_set.classes
    parameters = dealt.memory[0].static.num_bytes[Kind.PARAMETERS] // 2
    (gather,) = (
        n.action
        for n, _ in nodes_of(ranks)
        if n.made_by == "precondition-updates" and isinstance(n.action, Collective)
    )
    assert (gather.kind, gather.over) == ("all_gather", "rep")
    assert gather.operand_bytes == 4 * -(-parameters // 3)


@pytest.mark.parametrize("seed", some(range(3), 2))
def test_eigenvectors_read_what_is_left_of_a_matrix_for_each_column(seed: int) -> None:
    """Bytes of a step with decompositions against those of a step with hardly any."""
    rng = random.Random(seed)
    rows, columns, block = rng.randint(2, 40), rng.randint(2, 40), rng.randint(4, 24)
    moved: dict[tuple[str, int], int] = {}
    for algorithm in ("shampoo", "soap"):
        for every in (1, 10**9):
            job = compile_text(
                f"dim B = 4 dim R = {rows} dim C = {columns} "
                "model M(x[B, R]) { weight w[R, C] loss = mean(x @ w, over = [B, C]) } "
                f"plan p {{ optimizer {algorithm} {{ block = {block}, frequency = {every} }} }}"
            )
            (ranks,) = job.trace_set.classes
            moved[algorithm, every] = sum(
                count * node.action.num_bytes
                for node, count in nodes_of(ranks)
                if isinstance(node.action, Compute)
            )
    found = [side for each in blocks((rows, columns), block) for side in each]
    squares = 2 * 4 * sum(n * n for n in found)
    left = 4 * sum(n**3 / 3 for n in found)
    for algorithm, more in (("shampoo", left), ("soap", 0)):
        grown = moved[algorithm, 1] - moved[algorithm, 10**9]
        assert grown == pytest.approx(squares + more, abs=12)


UNITS = """
dim B = {batch}
dim V = 40
dim D = 16
dim L = 2
module Block(x[B, D]) -> [B, D] {{ weight w[D]  return x + rms_norm(x, w) }}
model M(tokens[B]: i32, targets[B]: i32) {{
  weight embed[V, D]
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(x @ embed, targets)
}}
plan p {{
  mesh dp = 2
  shard B over dp
  microbatch 1
  zero 3 over dp
  unit Block
  optimizer {algorithm} {{ block = 16 }}
}}
"""


@pytest.mark.parametrize("algorithm", ["shampoo", "soap"])
def test_what_a_microbatch_gathered_does_not_wait_for_the_update(algorithm: str) -> None:
    """As many microbatches as there may be need the same memory."""
    texts = [UNITS.format(batch=2 * count, algorithm=algorithm) for count in (2, 4, 7)]
    assert len({max(each.peak_bytes for each in compile_text(text).memory) for text in texts}) == 1
