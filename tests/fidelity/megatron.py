"""`python -m tests.fidelity.megatron [--random N --seed S]`: plans `like = megatron` beside what Megatron-LM's code does.

Its facts are in `cases/megatron.json`, each with the file and function that it was read in, and how it is here. Nothing of Megatron-LM runs:
models and plans are drawn, and their traces compared with the rules of the facts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stagec.backend.encode import TraceOptions, encode_traces
from stagec.backend.writer import WriteOptions, write_traces
from stagec.dialects.memory import Kind
from stagec.driver import compile_text
from tests.fidelity.oracle import coordinates
from tests.fidelity.record import Communication, RankRecord
from tests.fidelity.trace import Traces

FACTS = Path(__file__).parent / "cases" / "megatron.json"
ELEMENTS, ELEMENTS_PER_RANK = 40_000_000, 1_000_000
PARAMETER_ALIGNMENT, BUCKET_ALIGNMENT = 64, 128
PASSES = ("fwd", "bwd", "recompute")
MAIN, NARROW = 4, 2
"""Bytes of a main gradient, which are reduced in fp32, and of a parameter."""
COUNT, BOOLEAN = 8, 1
"""Bytes of the number of tokens for an expert, and of whether a token goes to one."""
PUBLISHED = FACTS.with_name("published.json")
OF_A_LAYER = {
    "tp": {"all_reduce": 4},
    "tp_full_recompute": {"all_reduce": 6},
    "tp_sp": {"all_gather": 4, "reduce_scatter": 4},
    "tp_sp, shards kept": {"all_gather": 6, "reduce_scatter": 4},
}
"""Collectives of a layer for each microbatch, each of the hidden states: `tensor_parallel_per_layer_per_microbatch` of `published.json`."""


@dataclass(frozen=True)
class Run:
    """A model and how it is spread. Sizes in elements."""

    width: int
    heads: int
    feed_forward: int
    vocabulary: int
    layers: int
    sequence: int
    tied: bool
    tp: int
    dp: int
    pp: int
    chunks: int
    overlap: bool
    bucket: int
    """Elements; 0: as Megatron-LM has it without being told."""
    experts: int = 0
    top_k: int = 2
    ep: int = 1
    gathers: bool = False
    """Tokens for experts: the all-gather dispatcher."""
    whole_experts: bool = False
    """Tensor-parallel ranks have experts of their own, instead of parts of each (`expert-tensor-parallel-size = 1`)."""
    joined: bool = False
    """Experts of a rank are one parameter (`moe_single_grouped_weight`)."""
    split: str = "tp_sp"
    """Of `OF_A_LAYER`."""

    @property
    def mesh(self) -> dict[str, int]:
        inner = {"edp": self.dp // self.ep, "ep": self.ep} if self.experts else {"dp": self.dp}
        return {"pp": self.pp, **inner, "tp": self.tp}

    @property
    def tokens(self) -> int:
        """Of a microbatch on a rank: of one sequence."""
        return self.sequence // self.tp

    @property
    def has_norm_terms(self) -> bool:
        """Whether sequence parallelism leaves each rank a term of the gradients of norms."""
        return self.tp > 1 and self.split.startswith("tp_sp")

    @property
    def stages(self) -> int:
        return self.pp * self.chunks


@dataclass(frozen=True)
class Parameter:
    elements: int
    is_whole: bool = False
    """On each tensor-parallel rank: of norms and routers."""
    is_shared: bool = False
    is_expert: bool = False


def draw(rng: random.Random) -> Run:
    tp, pp = rng.choice([1, 2]), rng.choice([1, 2, 2, 4])
    chunks = rng.choice([1, 2]) if pp > 1 else 1
    heads = tp * rng.choice([1, 2])
    overlap = rng.random() < 0.7
    run = Run(
        width=heads * rng.choice([16, 24, 40]),
        heads=heads,
        feed_forward=tp * rng.randrange(30, 200),
        vocabulary=tp * rng.randrange(50, 300),
        layers=pp * chunks * rng.choice([1, 2, 3]),
        sequence=tp * rng.choice([8, 20]),
        tied=rng.random() < 0.5,
        tp=tp,
        dp=rng.choice([2, 3, 4]),
        pp=pp,
        chunks=chunks,
        overlap=overlap,
        bucket=rng.choice([0, 3_000, 20_000, 60_000]) if overlap else 0,
        split=rng.choice([*OF_A_LAYER, "tp_sp"]),
    )
    if rng.random() < 0.35:
        gathers = rng.random() < 0.6
        sizes = {"width": 32, "heads": 2, "sequence": 16, "vocabulary": 100, "dp": 4}
        experts = {"ep": rng.choice([2, 4]), "experts": 8, "gathers": gathers}
        experts["joined"] = rng.random() < 0.3
        # Tensor-parallel ranks have parts of the tokens, too, where experts are.
        spread = {"split": "tp_sp"}
        whole = {"whole_experts": gathers and tp > 1 and rng.random() < 0.5}
        return Run(**{**vars(run), **sizes, **experts, **spread, **whole})
    return run


def text(run: Run) -> str:
    """The model, with weights in the order in which the backward pass is to find them, and the plan."""
    sizes = f"""
dim B = {run.dp * 4 * run.pp}
dim S = {run.sequence}
dim D = {run.width}
dim H = {run.heads}
dim E = D / H
dim F = {run.feed_forward}
dim V = {run.vocabulary}
dim L = {run.layers}
"""
    feed = """
module Feed(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  return gelu(x @ up) @ down
}
"""
    if run.experts:
        sizes += f"dim X = {run.experts}\ndim A = {run.top_k}\ndim N = B * S * A / X\n"
        feed = """
module Feed(x[B, S, D]) -> [B, S, D] {
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  wide[X, N, F] = dispatch(x, chosen, experts = X, tokens = N, dropless = true) @ up
  y[X, N, D] = gelu(wide) @ down
  return combine(y, gates, chosen)
}
"""
    head = "embed" if run.tied else "head"
    own = "" if run.tied else ", head[V, D]"
    model = f"""
module Attention(x[B, S, D]) -> [B, S, D] {{
  weight wq[D, H, E], wk[D, H, E], wv[D, H, E], wo[H, E, D]
  return attention(x @ wq, x @ wk, x @ wv, causal = true) @ wo
}}
{feed}
module Block(x[B, S, D]) -> [B, S, D] {{
  weight n1[D], n2[D]
  h = x + Attention(rms_norm(x, n1))
  return h + Feed(rms_norm(h, n2))
}}
model Net(tokens[B, S]: i64, targets[B, S]: i64) {{
  weight embed[V, D], norm[D]{own}
  x = embedding(tokens, embed)
  repeat L {{ x = Block(x) }}
  loss = cross_entropy(rms_norm(x, norm) @ {head}, targets)
}}
"""
    return sizes + model + plan_text(run)


def plan_text(run: Run) -> str:
    mesh = ", ".join(f"{axis} = {size}" for axis, size in run.mesh.items())
    lines = [f"mesh {mesh}" + (", dp = edp * ep" if run.experts else ""), "shard B over dp"]
    if run.whole_experts:
        # A router has tokens and experts: the tokens' rule is first.
        lines += ["shard H, V over tp", "shard S over tp"]
        lines += ["shard X over ep, tp", "shard N over dp, tp"]
    elif run.experts and run.gathers:
        lines += ["shard X over ep", "shard N over dp"]
    elif run.experts and run.tp > 1:
        lines += ["shard H, V over tp", "shard S over tp", "shard X over ep"]
        lines += ["shard F over tp", "shard N over dp, tp"]
    elif run.experts:
        lines += ["shard X over ep", "shard N over dp"]
    if run.tp > 1 and not (run.whole_experts or (run.experts and not run.gathers)):
        lines.append("shard H, F, V over tp")
        lines += ["shard S over tp"] if run.has_norm_terms else []
        lines += {
            "tp_full_recompute": ["recompute whole in Block"],
            "tp_sp, shards kept": ["collectives { keep = shard }"],
        }.get(run.split, [])
    if run.pp > 1:
        kind = f', schedule = "interleaved_1f1b", virtual_stages = {run.chunks}'
        lines.append(f"pipeline L over pp {{ microbatch = 1{kind if run.chunks > 1 else ''} }}")
    else:
        lines.append("microbatch 1")
    bucket = f", bucket_bytes = {run.bucket * MAIN}" if run.bucket else ""
    lines += [
        "precision { weights = bf16, gradients = fp32 }",
        f"zero 1 over dp {{ like = megatron{', experts = joined' if run.joined else ''} }}",
        f"gradients {{ overlap = {str(run.overlap).lower()}{bucket} }}",
    ]
    if run.experts:
        exchange = "exchange = all_gather, " if run.gathers else ""
        lines.append(f"collectives {{ {exchange}like = megatron }}")
    return "plan p {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def parameters(run: Run, stage: int) -> list[Parameter]:
    """Of a rank's part of a stage, from the last that is registered to the first: `bucket-ends`, `registration`."""
    d, tp = run.width, run.tp
    norm, square = Parameter(d, is_whole=True), d * d // tp
    shared = run.tied and run.stages > 1
    table = Parameter(run.vocabulary * d // tp, is_shared=shared)
    is_first, is_last = stage == 0, stage == run.stages - 1
    head = [table] if shared or not run.tied else []
    wide = d * run.feed_forward // tp
    feed = [Parameter(wide)] * 2
    if run.experts:
        own = run.experts // run.ep
        if run.whole_experts:
            own, wide = own // tp, wide * tp
        router = Parameter(d * run.experts, is_whole=True)
        expert = Parameter(own * wide if run.joined else wide, is_expert=True)
        feed = [expert] * (2 if run.joined else 2 * own) + [router]
    layer = [*feed, norm, Parameter(3 * square), norm, Parameter(square)]
    found = [*head, norm] if is_last else []
    found += layer * (run.layers // run.stages)
    return [*found, table] if is_first else found


def buckets(run: Run, held: Sequence[Parameter], stage: int) -> list[tuple[Parameter, ...]]:
    """How a buffer is cut: `bucket-size`, `one-bucket`, `bucket-ends`, `shared-table`."""
    limit = run.bucket or max(ELEMENTS, ELEMENTS_PER_RANK * run.dp)
    found: list[tuple[Parameter, ...]] = []
    current: list[Parameter] = []
    for each in held:
        if each.is_shared and current:
            found.append(tuple(current))
            current = []
        current.append(each)
        full = end_of(current) >= limit and run.overlap and stage == 0
        if full or each.is_shared:
            found.append(tuple(current))
            current = []
    return [*found, tuple(current)] if current else found


def end_of(bucket: Sequence[Parameter]) -> int:
    """`padding`: elements from its beginning to the end of its last parameter."""
    end = 0
    for each in bucket:
        end = -(-end // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT + each.elements
    return end


def padded(bucket: Sequence[Parameter], ways: int) -> int:
    """`padding`."""
    unit = math.lcm(ways, BUCKET_ALIGNMENT)
    return -(-end_of(bucket) // unit) * unit


@dataclass
class Comparison:
    """What differs of a run."""

    wrong: list[str]

    def same(self, what: str, here: object, there: object) -> None:
        if here != there:
            self.wrong.append(f"{what}: {here} here, {there} by the facts")


def compare(run: Run) -> Comparison:
    compiled = compile_text(text(run), "megatron.stg", "p")
    found = Comparison([])
    with tempfile.TemporaryDirectory() as directory:
        encoded = encode_traces(compiled.trace_set, TraceOptions(names="full"))
        write_traces(encoded, directory, WriteOptions())
        traces = Traces(Path(directory), "Net", run.mesh)
        step = math.prod(run.mesh.values()) // run.pp
        for rank in range(0, run.pp * step, step):
            compare_rank(run, rank, traces.rank(rank, None), found)
            at = coordinates(rank, run.mesh)
            plan = next(
                each
                for each in compiled.memory
                if all(at[axis] in places for axis, places in each.where.items())
            )
            compare_memory(run, rank, plan.static.num_bytes, found)
    return found


def stages_of(run: Run, rank: int) -> range:
    return range(coordinates(rank, run.mesh)["pp"], run.stages, run.pp)


def buffers(run: Run, rank: int) -> list[tuple[int, list[int]]]:
    """Of each stage of a rank, those of its experts after those of all else: the ranks that share it, and the elements of its buckets."""
    found: list[tuple[int, list[int]]] = []
    for stage in stages_of(run, rank):
        held = parameters(run, stage)
        for is_expert, ways in ((False, run.dp), (True, run.dp // run.ep)):
            chosen = [each for each in held if each.is_expert == is_expert]
            found.append((ways, [padded(bucket, ways) for bucket in buckets(run, chosen, stage)]))
    return found


def share(bucket: Sequence[Parameter], ways: int, place: int) -> int:
    """`shares`: elements of parameters in a rank's part of a bucket."""
    part = padded(bucket, ways) // ways
    begin, end, found = place * part, (place + 1) * part, 0
    for number, each in enumerate(bucket):
        last = end_of(bucket[: number + 1])
        found += max(0, min(end, last) - max(begin, last - each.elements))
    return found


def compare_shares(run: Run, rank: int, state: int, found: Comparison) -> None:
    """`shares`: equal parts of each parameter are as large as what the rank with most has, but for one element of each and what stands between parameters."""
    cut: list[tuple[int, tuple[Parameter, ...]]] = []
    alone, tensors = 0, 0
    for stage in stages_of(run, rank):
        held = parameters(run, stage)
        # Queries, keys and values are three tensors.
        tensors += 3 * len(held)
        for is_expert, ways in ((False, run.dp), (True, run.dp // run.ep)):
            chosen = [each for each in held if each.is_expert == is_expert]
            if ways == 1:
                alone += sum(each.elements for each in chosen)
            else:
                cut += [(ways, bucket) for bucket in buckets(run, chosen, stage)]
    of_ranks = [
        alone + sum(share(bucket, ways, place * ways // run.dp) for ways, bucket in cut)
        for place in range(run.dp)
    ]
    between = sum(
        -(-(padded(bucket, ways) - sum(each.elements for each in bucket)) // ways)
        for ways, bucket in cut
    )
    more = state - max(of_ranks)
    found.same(f"shares of rank {rank} within bounds", -between <= more <= tensors, True)


def compare_memory(run: Run, rank: int, kept: Mapping[Kind, int], found: Comparison) -> None:
    """Buffers of parameters and of main gradients: `padding`; and the optimizer's state. What one rank has alone is in no buffer here."""
    alone = sum(
        each.elements
        for stage in stages_of(run, rank)
        for each in parameters(run, stage)
        if each.is_expert and run.dp == run.ep
    )
    whole = alone + sum(sum(sizes) for ways, sizes in buffers(run, rank) if ways > 1)
    for kind, size in ((Kind.PARAMETERS, NARROW), (Kind.GRADIENTS, MAIN)):
        found.same(f"{kind.name.lower()} kept by rank {rank}", kept[kind], size * whole)
    compare_shares(run, rank, kept[Kind.MASTER] // MAIN, found)


def compare_rank(run: Run, rank: int, record: RankRecord, found: Comparison) -> None:
    reductions = [c for c in record.communications if c.reduces_gradient]
    gathered = [c for c in record.communications if c.phase == "optim" and c.kind == "all_gather"]
    data = "dp" if not run.experts else "edp+ep" if run.ep < run.dp else "ep"
    own = buffers(run, rank)
    for axis, part, ways in ((data, own[::2], run.dp), ("edp", own[1::2], run.dp // run.ep)):
        if ways == 1:
            continue
        there = [size for _, sizes in part for size in sizes]
        scattered = [c for c in reductions if c.kind == "reduce_scatter" and c.axis == axis]
        whole = [c for c in gathered if c.axis == axis]
        # Chunks of a rank reduce as the schedule has them.
        order = list if run.chunks == 1 else sorted
        for what, here, size in (
            ("reduced", [(c.bytes_in, c.bytes_out) for c in scattered], MAIN),
            ("gathered", [(c.bytes_out, c.bytes_in) for c in whole], NARROW),
        ):
            wanted = [(size * each, size * each // ways) for each in there]
            found.same(f"buckets {what} by rank {rank} over {axis}", order(here), order(wanted))
    compare_last(run, rank, reductions, found)
    compare_layers(run, rank, record, found)
    compare_dispatch(run, rank, record, found)


def compare_last(
    run: Run, rank: int, reductions: Sequence[Communication], found: Comparison
) -> None:
    """`norm-gradients`, `table-group`: what of a chunk comes when its buckets are reduced, in this order."""
    step = math.prod(run.mesh.values()) // run.pp
    ends = tuple(rank % step + at * step for at in (0, run.pp - 1))
    there: list[tuple[str, int]] = []
    for stage in stages_of(run, rank):
        held = parameters(run, stage)
        if run.has_norm_terms:
            there.append(("tp", MAIN * sum(each.elements for each in held if each.is_whole)))
        if run.pp > 1:
            there += [("pp", MAIN * each.elements) for each in held if each.is_shared]
    sums = [c for c in reductions if c.kind == "all_reduce"]
    here = [(c.axis, c.bytes_in) for c in sums]
    if run.chunks > 1:
        # The chunks of a rank one after the other.
        here, there = sorted(here), sorted(there)
    found.same(f"sums of rank {rank}", here, there)
    over_stages = {(c.ranks, c.dtype) for c in sums if c.axis == "pp"}
    found.same(f"group of tables of rank {rank}", over_stages - {(ends, "fp32")}, set())
    if run.chunks == 1:
        kinds = [c.kind for c in reductions]
        first = kinds.index("all_reduce") if sums else len(kinds)
        found.same(f"order of rank {rank}", kinds[first:], ["all_reduce"] * len(sums))


def compare_layers(run: Run, rank: int, record: RankRecord, found: Comparison) -> None:
    """What is published of a layer's collectives over tensor-parallel ranks, for each microbatch."""
    if run.tp == 1:
        return
    hidden = run.sequence * run.width * NARROW
    here = Counter(
        (c.kind, max(c.bytes_in, c.bytes_out))
        for c in record.communications
        if c.axis == "tp" and c.phase in PASSES and not c.reduces_gradient and of_layer(c)
        if not (run.experts and of_experts(c))
    )
    times = run.layers // run.pp * 4 * run.pp
    of_a_layer = OF_A_LAYER[run.split]
    if run.experts:
        # Those of attention alone: tokens of experts travel over other ranks as well.
        of_a_layer = {kind: each // 2 for kind, each in of_a_layer.items()}
    there = {(kind, hidden): times * each for kind, each in of_a_layer.items()}
    found.same(f"layers of rank {rank}", dict(here), there)


def of_layer(communication: Communication) -> bool:
    return communication.scope.partition(".")[0] == "Block"


def of_experts(communication: Communication) -> bool:
    return "Feed" in communication.scope.split(".")


def compare_dispatch(run: Run, rank: int, record: RankRecord, found: Comparison) -> None:
    """`alltoall-dispatcher`, `allgather-dispatcher`: what travels for experts, by pass and by ranks, in order."""
    times = (run.layers // run.pp) * 4 * run.pp if run.experts else 0
    both = "ep+tp" if run.tp > 1 else "ep"
    there = gathered(run, both) if run.gathers else exchanged(run, both)
    axes = {axis for _, axis in there} if times else {"ep", both}
    for phase in ("fwd", "bwd"):
        for axis in sorted(axes):
            wanted = there.get((phase, axis), []) * times if times else []
            here = [
                (c.kind, c.bytes_in)
                for c in record.communications
                if c.axis == axis and c.phase == phase and not c.reduces_gradient
                if axis != "tp" or of_experts(c)
            ]
            # Under the all-gather dispatcher the gradients of weights are reduced after those of tokens, here before.
            order = sorted if run.gathers else list
            found.same(
                f"{phase} for experts over {axis} of rank {rank}", order(here), order(wanted)
            )


def gathered(run: Run, both: str) -> dict[tuple[str, str], list[tuple[str, int]]]:
    """A boolean and a weight for each expert and tokens in the forward pass, gradients of results in the backward pass; terms the other way.

    Over expert- and tensor-parallel ranks at once (`tp_ep_group`)."""
    rows, hidden = run.tokens * run.experts, run.tokens * run.width * NARROW
    ways = run.ep * run.tp
    gathers, results = [BOOLEAN * rows, NARROW * rows, hidden], ("reduce_scatter", ways * hidden)
    return {
        ("fwd", both): [*(("all_gather", each) for each in gathers), results],
        ("bwd", both): [("all_gather", hidden), results, ("reduce_scatter", ways * NARROW * rows)],
    }


def exchanged(run: Run, both: str) -> dict[tuple[str, str], list[tuple[str, int]]]:
    """Counts, then copies of tokens and their weights; results back. Where tensor-parallel ranks have parts of experts, they gather what came."""
    weights = run.tokens * run.top_k * NARROW
    copies = weights * run.width
    counts = [("all_gather", COUNT * run.experts)]
    there = [("all_to_all", copies), ("all_to_all", weights)]
    found = {
        ("fwd", "ep"): [*there, ("all_to_all", copies)],
        ("bwd", "ep"): [("all_to_all", copies), *reversed(there)],
    }
    found["fwd", both] = counts + found.get(("fwd", both), [])
    if run.tp > 1:
        whole = [("reduce_scatter", run.tp * copies)]
        found["fwd", "tp"] = [("all_gather", copies), ("all_gather", weights), *whole]
        found["bwd", "tp"] = [
            ("all_gather", copies),
            ("reduce_scatter", run.tp * weights),
            *whole,
        ]
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.megatron", description=__doc__)
    parser.add_argument("--random", type=int, default=20, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    options = parser.parse_args(arguments)
    data = json.loads(FACTS.read_text())
    print(data["source"])
    for fact in data["facts"]:
        print(f"  {fact['name']:22} {fact['here']}")
    published = json.loads(PUBLISHED.read_text())["tensor_parallel_per_layer_per_microbatch"]
    print(f"published.json: {published['source']}: {'; '.join(OF_A_LAYER)}")
    rng = random.Random(options.seed)
    wrong = 0
    for number in range(options.random):
        run = draw(rng)
        result = compare(run)
        if result.wrong:
            wrong += 1
            print(f"{number}: {run}", *result.wrong, sep="\n    ")
    print(f"{options.random - wrong} of {options.random} plans agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
