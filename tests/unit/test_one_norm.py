"""What ranks tell each other of all gradients before the step: as often and as much on a rank of several stages as on one of a single stage."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from stagec.dialects import stg
from stagec.dialects.sched.actions import Collective
from stagec.driver import compile_text
from stagec.unrolling.module import rank_runs
from stagec.unrolling.rank import Arrangement, arrange
from stagec.unrolling.stage import OWN
from tests.fidelity.totals import nodes_of
from tests.unit.seldom import some

SEVERAL = (
    *("interleaved_1f1b, virtual_stages = 2", "looped_bfs, virtual_stages = 4"),
    *("interleaved_1f1b, virtual_stages = 4", "overlapped_1f1b, virtual_stages = 2"),
    *("zb_v", "dualpipe", "dualpipe_v"),
)
"""Schedules that put several stages on a rank."""
MODEL = """
dim B = 64
dim S = 16
dim V = 48
dim D = 24
dim F = 96
dim L = 16
module Block(x[B, S, D]) -> [B, S, D] {
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}
model M(tokens[B, S]: i32, targets[B, S]: i32) {
  weight WEIGHTS
  x = embedding(tokens, embed)
  repeat L { x = Block(x) }
  loss = cross_entropy(HEAD, targets)
}
"""
UPDATES = ("optimizer_step", "host_update")
Node = tuple[int, int]
"""A row of a rank, and a node of it."""


def drawn(draw: random.Random) -> tuple[str, str]:
    """A model, and a plan whose schedule is `SCHEDULE`."""
    tied = draw.random() < 0.4
    text = MODEL.replace("WEIGHTS", "embed[V, D]" if tied else "embed[V, D], head[D, V]")
    text = text.replace("HEAD", "x @ embed" if tied else "x @ head")
    mesh = {"pp": draw.choice((2, 4)), "dp": draw.choice((1, 2, 4)), "tp": draw.choice((1, 2))}
    level = draw.choice((0, 0, 1, 2, 3))
    told = draw.choice(
        (["clip = 1"], ["loss_scale = dynamic"], ["clip = 1", "loss_scale = dynamic"])
    )
    clauses = [
        f"mesh {', '.join(f'{axis} = {mesh[axis]}' for axis in draw.sample(sorted(mesh), 3))}",
        "shard B over dp",
        *(["shard F, V over tp"] if mesh["tp"] > 1 else []),
        "pipeline L over pp { microbatch = 2, schedule = SCHEDULE }",
        *([f"zero {level} over dp"] if level and mesh["dp"] > 1 else []),
        *(["freeze Block.up"] if draw.random() < 0.2 else []),
        *(
            ["offload { optimizer = true, update = host }"]
            if level < 3 and draw.random() < 0.2
            else []
        ),
        f"optimizer adamw {{ {', '.join(told)} }}",
        "precision { weights = bf16, activations = bf16, gradients = fp32 }",
    ]
    return text, "plan p {\n" + "".join(f"  {clause}\n" for clause in clauses) + "}\n"


def told_of_gradients(text: str) -> Mapping[str, Counter[tuple[tuple[str, ...], int]]]:
    """Of the ranks at each place of the pipeline: over which axes how many bytes are all-reduced beside the update, and how often."""
    return {
        rank_class.name: Counter(
            {
                (node.action.axes, node.action.operand_bytes): count
                for node, count in nodes_of(rank_class)
                if isinstance(node.action, Collective)
                and (node.phase, node.action.kind) == ("optim", "all_reduce")
            }
        )
        for rank_class in compile_text(text).trace_set.classes
    }


@pytest.mark.parametrize("seed", some(range(14), one_of=7))
def test_ranks_of_several_stages_tell_each_other_once(seed: int) -> None:
    draw = random.Random(f"norm {seed}")
    model, plan = drawn(draw)
    single = told_of_gradients(model + plan.replace("SCHEDULE", "1f1b"))
    text = model + plan.replace("SCHEDULE", draw.choice(SEVERAL))
    assert any(single.values())
    assert told_of_gradients(text) == single, text


def reads_in_update(rank: Arrangement) -> Mapping[Node, tuple[str, set[Node]]]:
    """The nodes of a rank's update: what each is called, and which of them it reads."""
    found: dict[Node, tuple[str, set[Node]]] = {}
    for row, which in enumerate(rank.body.tolist()):
        body = rank.bodies[which].body
        for number, (op, deps) in enumerate(zip(body.nodes, body.deps, strict=True)):
            if stg.phase_of(op) == "optim":
                behind = {
                    (row, at)
                    if slot == OWN
                    else (int(rank.source_row[row, slot]), int(rank.source_node[row, slot]))
                    for slot, at in deps
                }
                found[row, number] = op.node_name, behind
    return found


@pytest.mark.parametrize("seed", some(range(100, 120), one_of=10))
def test_updates_wait_for_what_all_stages_found(seed: int) -> None:
    draw = random.Random(f"norm {seed}")
    model, plan = drawn(draw)
    # With both, the update reads what was found last.
    plan = plan.replace("clip = 1, loss_scale = dynamic", "clip = 1")
    text = model + plan.replace("SCHEDULE", draw.choice(SEVERAL))
    for run in rank_runs(compile_text(text).module):
        reads = reads_in_update(arrange(run))
        found = {node for node, (name, _) in reads.items() if name == "gradient_statistic"}
        updates = {node for node, (name, _) in reads.items() if name in UPDATES}
        assert len(found) >= len(run.stages)
        assert updates, text
        for update in updates:
            behind, ahead = set[Node](), [update]
            while ahead:
                more = reads[ahead.pop()][1] & reads.keys() - behind
                behind |= more
                ahead += more
            assert any(reads[node][0] == "all_reduce" for node in behind), text
            assert found <= behind, text
