"""Microbatches of other sequences each: which ones they have, and that each costs what an iteration of these alone costs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from stagec.backend.encode import encode_traces
from stagec.backend.program import Node, TraceProgram
from stagec.cli.inputs import compile_iterations
from stagec.dialects.dist.sequences import SEQUENCES, TOKENS, DealtSequences, Kind
from stagec.dialects.sched.actions import Compute
from stagec.driver import Compiled, compile_ir, compile_text
from stagec.ir_text import print_ir
from stagec.memory import Kind as MemoryKind
from stagec.pass_manager import Stops
from tests.replay.machine import replay
from tests.replay.models import traces_of
from tests.unit.seldom import some
from tests.unit.test_serving import D, E, F, H, K, L, V, text

One = tuple[int, int, int]
"""New positions of a sequence, those before them, and those that logits are made of."""


def one_by_one(device: list[Kind], number: int, by: str) -> list[list[One]]:
    """What each microbatch has, sequence by sequence."""
    sequences = [(new, before, logits) for n, new, before, logits in device for _ in range(n)]
    ends = [0]
    for new, _, _ in sequences:
        ends.append(ends[-1] + new)
    total, edges, passed = ends[-1], [0], 0
    for at in range(1, number):
        if by == TOKENS:
            edges.append(total // number * at)
            continue
        # The end of a sequence that is nearest to the share, of two the later; each microbatch has one.
        nearest = min(range(len(ends)), key=lambda n: (abs(ends[n] * number - total * at), -n))
        passed = min(max(nearest, passed + 1), len(sequences) - (number - at))
        edges.append(ends[passed])
    found: list[list[One]] = []
    for low, high in zip(edges, [*edges[1:], total], strict=True):
        found.append([])
        for begin, (new, before, logits) in zip(ends, sequences, strict=False):
            first, last = max(low - begin, 0), min(high - begin, new)
            if first < last:
                kept = last - first
                found[-1].append((kept, before + first, kept if logits > 1 else 1))
    return found


def drawn(rng: random.Random, kinds: int = 4) -> list[Kind]:
    found: list[Kind] = []
    for _ in range(rng.randint(1, kinds)):
        new = rng.choice([1, 1, 2, 5, 70])
        before = rng.randint(1, 50) if new == 1 else rng.randint(0, 50)
        found.append((rng.randint(1, 6), new, before, rng.choice([1, new]) if before else 1))
    return found


@pytest.mark.parametrize("by", some([TOKENS, SEQUENCES], 2))
def test_sequences_are_split_as_engines_split_them(by: str):
    rng = random.Random(by)
    for _ in range(150):
        devices = rng.randint(1, 3)
        iterations = [[drawn(rng) for _ in range(devices)] for _ in range(rng.randint(1, 3))]
        dealt = DealtSequences.of(iterations)
        for number in range(2, min(5, int(dealt.most_microbatches(by).min())) + 1):
            parts = dealt.microbatches(number, by)
            for at, row in enumerate(iterations):
                for device, kinds in enumerate(row):
                    expected = one_by_one(kinds, number, by)
                    assert all(expected)
                    assert expected == [
                        [tuple(k) for n, *k in part.at(at, device) for _ in range(n)]
                        for part in parts
                    ]


def clause(kind: Kind) -> str:
    count, new, before, logits = kind
    if logits > 1 or (new == 1 and before):
        return f"decode {count} x {new} at {before}"
    return f"prefill {count} x {new}" + (f" at {before}" if before else "")


def plan(dp: int, tp: int, served: str) -> str:
    return f"""
plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard H, K, F over tp
  precision {{ weights = bf16, cache = fp8 }}
  device h100
  serve {{ {served}, block = 16 }}
}}
"""


def nodes_of(program: TraceProgram, microbatch: int) -> list[Node]:
    """In issue order."""
    rows = zip(program.segment.tolist(), program.microbatch.tolist(), strict=True)
    return [node for s, at in rows if at == microbatch for node in program.segments[s].nodes]


def costs(program: TraceProgram, microbatch: int) -> list[tuple[str, object]]:
    """Of each node, in issue order; of attention not which sequences are listed together."""
    return [
        (node.op, replace(action, kernel=None) if isinstance(action, Compute) else action)
        for node in nodes_of(program, microbatch)
        for action in [node.action]
    ]


def caches(done: Compiled) -> set[int]:
    return {each.static.num_bytes[MemoryKind.CACHE] for each in done.memory}


@pytest.mark.seldom
@pytest.mark.parametrize("by", [TOKENS, SEQUENCES])
@pytest.mark.parametrize("seed", range(4))
def test_a_microbatch_is_an_iteration_of_its_sequences_alone(seed: int, by: str):
    rng = random.Random(f"{seed} {by}")
    (dp, tp), window = rng.choice([(1, 1), (1, 2), (2, 2)]), rng.random() < 0.4
    own = drawn(rng, 3)
    number = min(rng.choice([2, 3]), sum(n * new for n, new, *_ in own))
    if by == SEQUENCES:
        number = min(number, sum(n for n, *_ in own))
    if number == 1:
        own, number = [*own, (2, 1, 9, 1)], 2
    on_all = [(dp * count, new, before, logits) for count, new, before, logits in own]
    model, served = text(window), ", ".join(map(clause, on_all))
    done = compile_text(model + plan(dp, tp, f"{served}, microbatches = {number}, split = {by}"))
    encoded = encode_traces(done.trace_set)
    assert not replay(*traces_of(encoded)).missing
    (whole,) = {*caches(compile_text(model + plan(dp, tp, served)))}
    assert caches(done) == {whole}
    peaks: list[int] = []
    for at, sequences in enumerate(one_by_one(own, number, by)):
        # Sequences that are cut come as those of a chunk do.
        alone = compile_text(
            model + plan(1, tp, ", ".join(clause((1, *each)) for each in sequences))
        )
        (ranks,) = alone.trace_set.classes
        for each in done.trace_set.classes:
            assert costs(each.program, at) == costs(ranks.program, 0)
        peaks += [
            each.peak_bytes - each.static.num_bytes[MemoryKind.CACHE] for each in alone.memory
        ]
    # Nothing of a microbatch is there when the next begins.
    assert {each.peak_bytes - whole for each in done.memory} == {max(peaks)}


def test_what_is_computed_by_hand():
    """Three tokens and a part of five after two others, in two microbatches of four tokens: the second goes on with the cache of the first."""
    done = compile_text(
        text() + plan(1, 1, "decode 3 at 10, prefill 1 x 5 at 2, microbatches = 2, split = tokens")
    )
    (ranks,) = done.trace_set.classes
    per_token = 2 * (D * H * E + 2 * D * K * E + H * E * D + 2 * D * F)
    for at, (pairs, keys, logits) in enumerate(
        [(3 * 11 + 3, 3 * 11 + 3, 4), (4 + 5 + 6 + 7, 7, 1)]
    ):
        nodes = nodes_of(ranks.program, at)
        computed = {
            op: sum(n.action.num_ops for n in nodes if n.op == op and isinstance(n.action, Compute))
            for op in ("contract", "attention")
        }
        assert computed == {
            "contract": L * 4 * per_token + 2 * logits * D * V,
            "attention": L * 4 * pairs * H * E,
        }
        attentions = [n.action for n in nodes if n.op == "attention"]
        (attended,) = {each.num_bytes for each in attentions if isinstance(each, Compute)}
        # q and the output in bf16, keys and values in fp8, the log-sum-exp in fp32
        assert attended == 2 * 4 * H * E * 2 + 2 * keys * K * E + 4 * 4 * H
    # Sixteen positions for each of the three, and for the one that is cut.
    assert caches(done) == {L * 2 * 4 * 16 * K * E}


@pytest.mark.parametrize("served", some(["decode 8 at 100", "prefill 8 x 6"], 2))
def test_sequences_of_one_kind_are_the_rows_of_microbatches(served: str):
    """With as many in each, `microbatch` says the same."""
    rows = compile_text(text() + plan(1, 2, served).replace("serve", "microbatch 4\n  serve"))
    said = compile_text(text() + plan(1, 2, f"{served}, microbatches = 2"))
    for one, other in zip(rows.trace_set.classes, said.trace_set.classes, strict=True):
        for at in (0, 1):
            assert costs(one.program, at) == costs(other.program, at)
    assert [m.peak_bytes for m in rows.memory] == [m.peak_bytes for m in said.memory]


@pytest.mark.parametrize(
    "pipeline", some(["", "pipeline L over tp { schedule = forward_only }"], 2)
)
def test_their_ir_is_the_whole_program(pipeline: str):
    served = plan(1, 3, "decode 7 at 10, prefill 2 x 50 at 2, microbatches = 3")
    served = served.replace("shard H, K, F over tp", pipeline)
    whole = compile_text(text() + served)
    part = compile_text(text() + served, stops=Stops(after="split-microbatches"))
    again = compile_ir(print_ir(part.module), "net.mlir")
    for one, other in zip(whole.trace_set.classes, again.trace_set.classes, strict=True):
        for at in range(3):
            assert nodes_of(one.program, at) == nodes_of(other.program, at) != []
    encoded = encode_traces(whole.trace_set)
    assert not replay(*traces_of(encoded)).missing


def test_iterations_of_fewer_tokens_are_in_fewer(tmp_path: Path):
    model, rows = tmp_path / "net.stg", tmp_path / "rows.csv"
    model.write_text(text() + plan(1, 1, "decode 1 at 1, microbatches = 3"))
    rows.write_text("prefill,decode\n,5@7\n,1@8\n2x40,5@8\n,2@9\n,3@9\n")
    found = compile_iterations(str(model), str(rows))
    assert found.which.tolist() == [0, 1, 0, 2, 0]
    count = [int(part.trace_set.classes[0].program.microbatch.max()) + 1 for part in found.parts]
    assert count == [3, 1, 2]
