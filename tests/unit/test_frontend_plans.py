"""Plans: what clauses come to, what extending changes, which sizes hold."""

from __future__ import annotations

import pytest

from stagec.diagnostics import CompileError, Diagnostic
from stagec.frontend import Plan, check, lower, parse_text, warnings_of
from stagec.plans import clauses as plans

MODEL = """
dim B = 16
dim S = 64
dim D = 32
dim L = 4
dim F = 4 * D
module Block(x[B, S, D]) -> [B, S, D] {
  weight up[D, F], down[F, D]
  h = silu(x @ up)
  return h @ down
}
model Net(x[B, S, D]) {
  y = x * 2
  repeat L { y = Block(y) }
  loss = mean(y, over = [B, S, D])
}
"""


def plan(text: str, name: str | None = None, **sets: str) -> Plan:
    return check(parse_text(MODEL + text), name, sets).plan


def errors(text: str, name: str | None = None, **sets: str) -> list[str]:
    with pytest.raises(CompileError) as caught:
        plan(text, name, **sets)
    return [d.code for d in caught.value.diagnostics]


def test_without_a_plan_there_is_one_device():
    assert plan("") == Plan()
    assert plan("").num_ranks == 1


def test_the_first_plan_holds_unless_another_is_named():
    text = "plan a { mesh dp = 2 }\nplan b { mesh dp = 4 }"
    assert plan(text).mesh == {"dp": 2}
    assert plan(text, "b").mesh == {"dp": 4}


def test_mesh_is_in_the_order_of_the_text_and_of_rank_order():
    assert list(plan("plan p { mesh pp = 2, dp = 4, tp = 8 }").mesh) == ["pp", "dp", "tp"]
    reordered = plan("plan p { rank_order tp, dp, pp  mesh pp = 2, dp = 4, tp = 8 }")
    assert list(reordered.mesh) == ["tp", "dp", "pp"]
    assert reordered.num_ranks == 64


def test_a_product_is_its_axes():
    p = plan("plan p { mesh edp = 2, ep = 4, dp = ep * edp  shard B over dp  zero 1 over dp }")
    assert p.mesh == {"edp": 2, "ep": 4}
    assert p.products == {"dp": ("edp", "ep")}
    assert p.rules[0].axes == ("edp", "ep")
    assert p.zero is not None
    assert p.zero.axes == ("edp", "ep")


def test_sizes_of_axes_are_expressions():
    p = plan("plan p { mesh dp = B / 2, tp = 2 }")
    assert p.mesh == {"dp": 8, "tp": 2}


def test_set_on_the_command_line_goes_before_set_in_the_plan():
    text = "plan p { set S = 128  mesh dp = 2 }"
    assert check(parse_text(MODEL + text)).sizes.values["S"] == 128
    assert check(parse_text(MODEL + text), None, {"S": "256"}).sizes.values["S"] == 256
    assert plan(text, dp="4").mesh == {"dp": 4}


def test_sizes_that_depend_on_one_that_is_set_follow():
    sizes = check(parse_text(MODEL), None, {"D": "8"}).sizes
    assert sizes.values["F"] == 32
    assert str(sizes.dims["F"].size) == "4*D"


def test_an_axis_without_a_size_is_a_parameter():
    text = "plan p { mesh dp, tp = 2 }"
    assert errors(text) == ["E0306"]
    assert plan(text, dp="8").mesh == {"dp": 8, "tp": 2}
    assert plan("plan q extends p { set dp = 4 }\n" + text, "q").mesh == {"dp": 4, "tp": 2}


def test_rules_keep_their_order():
    rules = plan("plan p { mesh dp = 2, tp = 2  shard F over tp  shard B, S over dp, tp }").rules
    assert [(r.dims, r.axes) for r in rules] == [(("F",), ("tp",)), (("B", "S"), ("dp", "tp"))]


def test_overrides_of_one_value():
    found = plan("plan p { mesh tp = 2  shard Block.h[F] over tp  shard Net.y over none }")
    assert [(o.path, o.dims, o.axes) for o in found.overrides] == [
        (("Block", "h"), ("F",), ("tp",)),
        (("Net", "y"), None, ()),
    ]
    assert found.rules == ()


def test_precision_follows_the_weights():
    p = plan("plan p { precision { weights = bf16 } }").precision
    assert (p.weights, p.activations, p.gradients, p.gather) == ("bf16",) * 4
    assert (p.optimizer, p.master, p.reduce) == ("fp32", "fp32", "bf16")
    assert p.given.keys() == {"weights"}


def test_precision_says_what_it_says():
    p = plan("plan p { precision { weights = bf16, gradients = fp32, master = none } }").precision
    assert (p.gradients, p.reduce, p.master) == ("fp32", "fp32", None)
    assert plan("").precision.master is None


def test_settings_have_their_types():
    p = plan(
        """plan p {
          mesh pp = 2, cp = 2
          pipeline L over pp { schedule = "my.csv", first = -1, layers = [1, 3], virtual_stages = 2 }
          context cp { method = ulysses }
          gradients { bucket_bytes = 25MiB, first_bucket_bytes = 1024 * B, overlap = false }
          device h100 { memory = 1.5GiB, flops_per_s = 1e15 }
          overlap { tp = true }
          microbatch B / 8
          recompute silu, h in Block
          unit Block
          optimizer sgd { momentum = 0.9 }
          pass a-b { n = 3, x = 0.5, words = [one, "two"], yes = true, size = D }
        }"""
    )
    assert p.pipeline is not None
    assert (p.pipeline.schedule, p.pipeline.first, p.pipeline.layers) == ("my.csv", -1, (1, 3))
    assert (p.pipeline.counts, p.pipeline.axis, p.pipeline.virtual_stages) == (("L",), "pp", 2)
    assert p.contexts[0].method == "ulysses"
    assert p.gradients.bucket_bytes == 25 * 2**20
    assert p.gradients.first_bucket_bytes == 16384
    assert p.device.memory == 3 * 2**29
    assert p.device.flops_per_s == 10**15
    assert (p.overlap.tp, p.overlap.zero) == (True, True)
    assert p.microbatch == 2
    assert p.recompute.what == ("silu", "h")
    assert p.recompute.modules == ("Block",)
    assert p.units == ("Block",)
    assert p.optimizer.algorithm == "sgd_momentum"
    (call,) = p.passes
    assert (call.name, call.arguments) == (
        "a-b",
        {"n": 3, "x": 0.5, "words": ("one", "two"), "yes": True, "size": 32},
    )


def test_a_pipelines_own_microbatch_goes_before_the_clause():
    for text, size in (("", 2), ("microbatch = 4", 4)):
        p = plan(f"plan p {{ mesh pp = 2  microbatch 2  pipeline L over pp {{ {text} }} }}")
        assert p.pipeline is not None
        assert (p.pipeline.microbatch, p.microbatch) == (size, 2)


def test_units_that_are_not_said_differ_from_none():
    assert plan("").units is None
    assert plan("plan p { unit none }").units == ()


BASE = """
plan base {
  mesh dp = 2, tp = 2
  shard B over dp
  shard F over tp
  shard Block.h[S] over tp
  zero 1 over dp { prefetch = 3 }
  precision { weights = bf16, gradients = fp32 }
  gradients { bucket_bytes = 1MiB }
  context tp { method = ring }
  device h100 { memory = 64GiB }
  pass one { n = 1 }
  set S = 128
  optimizer sgd { momentum = 0.5 }
}
"""


def extended(text: str) -> Plan:
    return plan(BASE + f"plan p extends base {{ {text} }}", "p")


def test_extending_by_nothing_changes_the_name_alone():
    base, same = plan(BASE, "base"), extended("")
    for name in vars(base):
        if name not in ("name", "span"):
            assert getattr(base, name) == getattr(same, name), name


def test_a_clause_replaces_that_of_its_kind():
    p = extended("zero 3 over dp  mesh dp = 4, tp = 2")
    assert p.zero is not None
    assert (p.zero.level, p.zero.prefetch) == (3, 1)
    assert p.mesh == {"dp": 4, "tp": 2}


def test_none_takes_a_clause_away():
    p = extended("zero none  context none  pipeline none")
    assert (p.zero, p.contexts, p.pipeline) == (None, (), None)


def test_some_clauses_are_replaced_setting_by_setting():
    p = extended("precision { gradients = bf16 }  gradients { reduce = microbatch }")
    assert (p.precision.weights, p.precision.gradients) == ("bf16", "bf16")
    assert (p.gradients.bucket_bytes, p.gradients.reduce) == (2**20, "microbatch")


def test_a_device_keeps_its_preset_unless_it_names_one():
    assert extended("device { link_latency_us = 2 }").device.preset == "h100"
    assert extended("device { link_latency_us = 2 }").device.memory == 64 * 2**30
    assert extended("device a100").device.memory is None
    assert extended("device a100").device.capacity == 80 * 2**30


def test_rules_are_replaced_together_and_overrides_by_value():
    p = extended("shard B over dp, tp")
    assert [r.dims for r in p.rules] == [("B",)]
    assert len(p.overrides) == 1
    p = extended("shard Block.h[F] over tp  shard Net.x over none")
    assert [r.dims for r in p.rules] == [("B",), ("F",)]
    assert [(o.path[-1], o.dims) for o in p.overrides] == [("h", ("F",)), ("x", None)]


def test_contexts_and_passes_are_replaced_by_name():
    p = extended("context dp { method = ulysses }  pass two { n = 2 }  pass one { n = 3 }")
    assert {c.axis: c.method for c in p.contexts} == {"tp": "ring", "dp": "ulysses"}
    assert {c.name: c.arguments["n"] for c in p.passes} == {"one": 3, "two": 2}


def test_sizes_are_replaced_by_name():
    text = BASE + "plan p extends base { set B = 32 }"
    sizes = check(parse_text(MODEL + text), "p").sizes.values
    assert (sizes["S"], sizes["B"]) == (128, 32)


def test_plans_extend_plans_that_extend_plans():
    text = BASE + "plan a extends base { microbatch 1 } plan b extends a { microbatch 2 }"
    p = plan(text, "b")
    assert (p.microbatch, p.mesh) == (2, {"dp": 2, "tp": 2})


def test_a_plan_that_is_not_chosen_may_wait_for_sizes():
    assert plan("plan p { mesh dp = 2 } plan q { mesh dp }").mesh == {"dp": 2}


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("plan p { mesh dp = 3  shard B over dp }", ["E0301"]),
        ("plan p { mesh mb = 3 }", ["E0306"]),
        ("plan p { mesh dp = 2 } plan p { mesh dp = 2 }", ["E0202"]),
        ("plan p { mesh dp = tp, tp = dp }", ["E0306", "E0306"]),
        ("plan p { mesh dp = B / tp, tp = 2 }", ["E0306"]),
        ("plan p { mesh dp = 2 set dp = dp * 2 }", ["E0206"]),
        ("plan p { microbatch 0 }", ["E0208"]),
        ("plan p { pipeline X over pp }", ["E0302"]),
        ("plan p { mesh pp = 2 pipeline X over pp }", ["E0405"]),
    ],
)
def test_mistakes(text: str, codes: list[str]):
    assert sorted(errors(text)) == codes


def test_every_clause_without_text_is_its_defaults():
    for clause in ("recompute", "precision", "optimizer", "collectives", "gradients", "overlap"):
        found = getattr(Plan(), clause)
        assert isinstance(found, plans.Clause)
        assert found.span is None
        assert not found.given


def all_warnings(text: str) -> list[Diagnostic]:
    checked = check(parse_text(text))
    return warnings_of(checked, lower(checked))


@pytest.mark.parametrize(
    ("clauses", "unused"),
    [
        ("", ["dp"]),
        ("shard B over dp", []),
        ("shard Block.h[F] over dp", []),
        ("shard Block.h over none", ["dp"]),
        ("zero 1 over dp", ["dp"]),
        ("zero 1 over dp shard B over dp", []),
        ("zero 3 over dp shard S over dp", []),
        ("context dp { method = ring }", ["dp"]),
        ("context dp { method = ring } shard S over dp", []),
        ("pipeline L over dp", []),
        ("link dp { latency_us = 2 }", ["dp"]),
        ('pass decompose-all-reduce { axis = "dp", scatter = "S" }', []),
        ('pass split-collectives { axes = ["tp", "dp"] }', []),
        ('pass split-collectives { axes = ["all"] }', []),  # "all" is about every axis
        ("pass somebodys-own", []),
        ('pass somebodys-own { axis = "tp" }', ["dp"]),
    ],
)
def test_axes_that_nothing_uses(clauses: str, unused: list[str]):
    text = f"plan p {{ mesh tp = 2, dp = 2, cp = 1 {clauses} shard D over tp }}"
    warnings = all_warnings(MODEL + text)
    found = [w.message.split("`")[1] for w in warnings if w.code == "W0302"]
    assert found == unused


def test_an_unused_product_leaves_its_axes_unused():
    text = "plan p { mesh a = 2, b = 2, dp = a * b  shard B over a }"
    (warning,) = all_warnings(MODEL + text)
    assert "axis `b`" in warning.message
