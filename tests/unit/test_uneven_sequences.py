"""Devices that serve other sequences name one size for what they exchange, whichever parts of uneven dims they have."""

from __future__ import annotations

import random
from itertools import product

import pytest

import stagec
from stagec.analysis.sequences import ModuleSequences
from stagec.analysis.sizes import dim_sizes, dims_by_place, mesh_of, size_values
from stagec.diagnostics import CompileError
from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from stagec.frontend import parse_text
from stagec.searching.whole_plans import WholePlan, compiled_whole
from stagec.sweeping.grid import Grid
from stagec.sweeping.plans import SweepRequest
from stagec.sweeping.pools import table_of
from stagec.symbolic import Size, call, constant, symbol
from tests.unit.model_texts import served_experts
from tests.unit.seldom import some

TEXT = """
dim B = 2
dim S = 4
dim T = S
dim D = 6
dim F = {width}

model Net(x[B, S, D]) {{
  weight up[D, F], down[F, D]
  cache seen[B, T, D]
  return append(seen, gelu(x @ up) @ down)
}}

plan p {{
  mesh dp = {dp}, tp = {tp}
  shard B over dp
  shard F over tp {{ uneven = {how} }}
  serve {{ decode {sequences} at 7 }}
}}
"""


def drawn(rng: random.Random) -> Size:
    """A size that depends on a device's sequences, on its part of `F`, or on both."""
    new, part = symbol("S") * rng.randint(1, 3), symbol("F.part") * rng.randint(1, 2)
    kinds = (new, part, new * part, call("max", new, part), call("min", new, part))
    return rng.choice(kinds) + constant(rng.randint(0, 5))


@pytest.mark.parametrize("seed", some(range(4), 2))
def test_members_of_a_group_agree_whichever_part_they_have(seed: int) -> None:
    """Against every rank on its own."""
    rng = random.Random(seed)
    dp, tp = rng.choice((2, 3)), rng.choice((3, 4))
    sizes = {"dp": dp, "tp": tp, "width": tp * rng.randint(2, 4) - 1}
    sizes["sequences"] = dp * rng.randint(1, 2) + 1
    how = rng.choice(("balanced", "chunk"))
    module = compile_text(TEXT.format(**sizes, how=how), "net.stg", "p").module
    known = ModuleSequences.of(module)
    assert known is not None and known.axes == {"dp"}
    mesh, part = mesh_of(module), dim_sizes(module)["F.part"]
    ranks = list(product(range(dp), range(tp)))
    for _ in range(40):
        size, axes = drawn(rng), rng.choice((("dp",), ("dp", "tp"), ("tp",)))
        groups: dict[tuple[int, ...], set[object]] = {}
        for rank in ranks:
            at = dict(zip(("dp.index", "tp.index"), rank, strict=True))
            values = {**size_values(module), **mesh, **at}
            values |= known.sizes(values)
            values["F.part"] = part.integer(values)
            group = tuple(n for axis, n in zip(mesh, rank, strict=True) if axis not in axes)
            groups.setdefault(group, set()).add(size.evaluate(values))
        agree = all(len(each) == 1 for each in groups.values())
        assert known.agree(size, axes, dims_by_place(module)) == agree, (str(size), axes)


COPIES = """
dim B = 8
dim S = 1
dim T = S
dim D = 16
dim H = 4
dim K = 1
dim E = 4
model Net(x[B, S, D]) {
  weight q[D, H, E], k[D, K, E], v[D, K, E], o[H, E, D]
  cache keys[B, T, K, E], values[B, T, K, E]
  return attention(x @ q, append(keys, x @ k), append(values, x @ v), causal = true) @ o
}
plan p {
  mesh dp = 3, tp = 2
  shard B over dp
  shard H over tp
  shard K over tp { replicate = true }
  serve { decode B at 9 }
  device h100
}
"""


@pytest.mark.parametrize("tp", [2, 4])
def test_an_axis_with_copies_may_be_sized_beside_other_sequences(tp: int) -> None:
    """Where it is two axes of the mesh, what was asked of its size has an answer on devices that differ in their sequences."""
    written = COPIES.replace("tp = 2", f"tp = {tp}")
    one, other = compile_text(written), compile_text(COPIES, overrides={"tp": str(tp)})
    assert [x.peak_bytes for x in one.memory] == [x.peak_bytes for x in other.memory]
    assert step_summary(one) == step_summary(other)
    swept = SweepRequest(parse_text(COPIES), None, {}, Grid({"tp": (2, 4)}, {}), ("step_time",))
    assert table_of(swept).row(int(tp == 4))["step_time"] == pytest.approx(step_summary(one).step_s)


MODEL = served_experts(
    """
  weight router[D, X], up[X, D, F], down[X, F, D]
  gates, chosen = topk(softmax(x @ router, over = X), over = X, to = A)
  h[X, T, F] = dispatch(x, chosen, experts = X, tokens = T) @ up
  y[X, T, D] = h @ down
  return combine(y, gates, chosen)
""",
    layers=2,
)
UNLIKE = (
    MODEL
    + """
plan searched {
  mesh edp = 3, ep = 2, dp = edp * ep
  shard B over dp
  shard X over ep
  shard T over dp
  load { zipf = 1.1, seed = 3 }
  serve { prefill 8 x 1, decode B x 2 at 100, experts = average }
  device h100
}
"""
)


@pytest.mark.seldom
def test_devices_that_run_other_programs_are_refused_whoever_compiles() -> None:
    """In Python, in what proves a plan of a search, and in a sweep, as on the command line."""
    with pytest.raises(CompileError, match="cannot be one of the plan"):
        compile_text(UNLIKE)
    with pytest.raises(CompileError, match="cannot be one of the plan"):
        stagec.compile(UNLIKE)
    assert "cannot be one of the plan" in compiled_whole(WholePlan("net.stg", UNLIKE, 0)).error
    asked = SweepRequest(parse_text(UNLIKE), None, {}, Grid({"B": (64,)}, {}), ("flops",))
    with pytest.raises(CompileError, match="cannot be one of the plan"):
        asked.compiled_at({"B": 64})


PADDED = """
plan p {{
  mesh dp = {dp}
  shard B over dp
  shard T over dp
  serve {{ {sequences}, experts = padded }}
}}
"""


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_a_device_whose_padded_tokens_do_not_divide_is_refused(seed: int) -> None:
    """Whichever device it is, and whether the mesh or `--set` gives the size of its axis."""
    rng = random.Random(seed)
    said: set[bool] = set()
    while len(said) < 2:
        dp = rng.choice((2, 4))
        new = [rng.choice((64, 64, 24, 32, 10)) for _ in range(dp)]
        sequences = ", ".join(f"prefill 1 x {each}" for each in new)
        # The tokens of an expert if all devices had as many: there are 16, and a token has two.
        refused = any(-(-dp * each * 2 // 16) % dp for each in new)
        text = MODEL + PADDED.format(dp=dp, sequences=sequences)
        for overrides in ({}, {"dp": str(dp)}):
            try:
                compile_text(text, overrides=overrides)
                found = False
            except CompileError as error:
                found = error.diagnostics[0].code in ("E0301", "E0414")
            assert found == refused, (sequences, overrides)
        said.add(refused)
