"""`overlap { ep = true }` of what is served: told where nothing can run beside exchanges (W0304)."""

import pytest

from stagec.driver import Compiled, compile_text
from stagec.estimate.step import step_summary
from tests.unit.model_texts import served_experts
from tests.unit.seldom import some

MODEL = served_experts(
    """
  weight router[D, X], up[X, D, F], down[X, F, D], w[D, F], v[F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  r = dispatch(x, chosen, experts = X, tokens = T)
  s = silu(x @ w) @ v
  h[X, T, F] = r @ up
  y[X, T, D] = silu(h) @ down
  return SUM
""",
    layers=3,
)
SUMS = {
    "experts": ("combine(y, gates, chosen)", True),
    "shared behind": ("combine(y, gates, chosen) + silu(x @ w) @ v", True),
    "dense behind": ("silu(combine(y, gates, chosen) @ w) @ v", True),
    "shared": ("combine(y, gates, chosen) + s", False),
}
"""What a layer computes, and whether all of it waits for its exchanges."""


def served(kind: str, ways: str, serve: str, overlap: str) -> Compiled:
    text = MODEL.replace("SUM", SUMS[kind][0])
    plan = f"mesh {ways} precision {{ weights = bf16 }} device h100"
    plan += f" serve {{ {serve}, experts = average }} overlap {{ ep = {overlap} }}"
    return compile_text(f"{text} plan p {{ {plan} }}")


def told(made: Compiled) -> list[str]:
    return [each.message for each in made.idle]


@pytest.mark.parametrize("kind", some(SUMS, 4))
@pytest.mark.parametrize(
    "ways", ["ep = 4 shard B, X over ep", "ep = 2, tp = 2 shard B, X over ep shard F over tp"]
)
@pytest.mark.parametrize("microbatches", some([2, 1]))
def test_exchanges_that_nothing_runs_beside_are_told(kind: str, ways: str, microbatches: int):
    """Where that is told, a step is as long and does the same in the same order."""
    serve = f"decode 32 at 9, prefill 4 x 8, microbatches = {microbatches}"
    made, plain = (served(kind, ways, serve, each) for each in ("true", "false"))
    is_idle = SUMS[kind][1] and microbatches == 1
    assert told(made) == is_idle * ["`ep` of `overlap` changes nothing here"]
    assert told(plain) == []
    if is_idle:
        assert step_summary(made).step_s == step_summary(plain).step_s
    assert (issued(made) == issued(plain)) == is_idle


def issued(made: Compiled) -> list[object]:
    """What each class does, and the nodes that each waits for, at first or second hand."""
    found: list[object] = []
    for each in made.trace_set.classes:
        program = each.program
        waits: list[frozenset[int]] = []
        for row, number in enumerate(program.segment.tolist()):
            begin = len(waits)
            for node in program.segments[number].nodes:
                deps = {
                    int(program.slots[row][dep.slot]) if dep.slot >= 0 else begin + dep.node
                    for dep in (*node.data_deps, *node.ctrl_deps)
                } - {-1}
                waits.append(frozenset(deps).union(*(waits[dep] for dep in deps)))
                found.append((each.where, node.op, node.scope, node.action, node.stream, waits[-1]))
    return found
