"""What the frontend makes of a model: ops, weights and their stacks, names, places."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import TypeVar

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

from stagec.diagnostics import CompileError, span_of
from stagec.dialects import dist, stg
from stagec.dialects.types import StackType, TensorType
from stagec.frontend import check, lower, parse_file, parse_text
from tests.unit.examples import FIRST, ids, parsed
from tests.unit.seldom import some

Op = TypeVar("Op", bound=Operation)

DIMS = """
dim B = 4
dim S = 16
dim T = S
dim D = 8
dim H = 2
dim E = D / H
dim L = 6
"""


def lowered(text: str, plan: str | None = None, **sets: str) -> ModuleOp:
    module = lower(check(parse_text(DIMS + text, "m.stg"), plan, sets))
    module.verify()
    return module


def ops(module: ModuleOp, kind: type[Op]) -> list[Op]:
    return [op for op in module.walk() if isinstance(op, kind)]


def weights(module: ModuleOp) -> dict[str, str]:
    """The type of each weight by its path."""
    return {op.path.data: str(op.weight.type) for op in ops(module, stg.WeightOp)}


def result(module: ModuleOp) -> TensorType:
    (output,) = ops(module, stg.OutputOp)
    found = output.values[0].type
    assert isinstance(found, TensorType)
    return found


@pytest.mark.parametrize(("path", "plan"), some(FIRST, 6), ids=ids(FIRST))
def test_examples_print_and_parse(path: Path, plan: str):
    module = lower(check(parsed(path), plan))
    module.verify()
    text = StringIO()
    Printer(text).print_op(module)
    context = Context()
    for dialect in (Builtin, stg.Stg, dist.Dist):
        context.load_dialect(dialect)
    again = StringIO()
    Printer(again).print_op(Parser(context, text.getvalue()).parse_module())
    assert again.getvalue() == text.getvalue()


def test_dims_keep_their_expressions():
    module = lowered("model M(x[B, D]) { return x }")
    assert {op.dim.data: str(op.size.data) for op in ops(module, stg.DimOp)} == {
        "B": "4",
        "S": "16",
        "T": "S",
        "D": "8",
        "H": "2",
        "E": "D/H",
        "L": "6",
    }


def test_set_replaces_an_expression():
    module = lowered("model M(x[B, D]) { return x }", E="8")
    assert {op.dim.data: str(op.size.data) for op in ops(module, stg.DimOp)}["E"] == "8"


def test_mesh_and_rules():
    text = "model M(x[B, D]) { return silu(x) } plan p { mesh edp = 2, ep = 2, dp = edp * ep "
    module = lowered(text + "rank_order ep, edp  shard B over dp }")
    (mesh,) = ops(module, dist.MeshOp)
    assert list(mesh.sizes.items()) == [("ep", 2), ("edp", 2)]
    (rule,) = ops(module, dist.RuleOp)
    assert (rule.dims.data, rule.axes.data) == (("B",), ("edp", "ep"))


BLOCKS = """
module Linear(x[B, S, D]) -> [B, S, D] {
  weight w[D, H, E]
  y = x @ w
  return y @ w
}
module Block(x[B, S, D]) -> [B, S, D] {
  weight norm[D]
  h = Linear(rms_norm(x, norm))
  return Linear(h) + Linear(x)
}
"""


def test_each_call_has_weights_of_its_own():
    module = lowered(BLOCKS + "model M(x[B, S, D]) { return Block(Block(x)) }")
    assert list(weights(module)) == [
        "Block.norm",
        "Block.Linear.w",
        "Block.Linear_2.w",
        "Block.Linear_3.w",
        "Block_2.norm",
        "Block_2.Linear.w",
        "Block_2.Linear_2.w",
        "Block_2.Linear_3.w",
    ]


def test_weights_of_repeats_are_stacks():
    text = (
        "model M(x[B, S, D]) { repeat L / 2 { repeat 2 { x = Block(x) } x = Linear(x) } return x }"
    )
    module = lowered(BLOCKS + text)
    found = weights(module)
    w = "!stg.tensor<[D, H, E], fp32>"
    assert found["Block.Linear.w"] == f'!stg.stack<"L/2" x !stg.stack<"2" x {w}>>'
    assert found["Linear.w"] == f'!stg.stack<"L/2" x {w}>'
    assert isinstance(ops(module, stg.WeightOp)[-1].weight.type, StackType)
    outer, inner = ops(module, stg.RepeatOp)
    assert (len(outer.stacks), len(inner.stacks)) == (5, 4)
    assert all(op.parent_op() is not outer for op in ops(module, stg.WeightOp))


def test_a_weight_from_outside_is_the_same_in_each_iteration():
    text = """
    module Scale(x[B, D], w[D]) -> [B, D] { return x * w }
    model M(x[B, D]) {
      weight w[D]
      repeat L { x = Scale(x, w) }
      return Scale(x, w)
    }
    """
    module = lowered(text)
    assert weights(module) == {"w": "!stg.tensor<[D], fp32>"}
    (repeat,) = ops(module, stg.RepeatOp)
    assert not repeat.stacks
    (weight,) = ops(module, stg.WeightOp)
    assert len(list(weight.weight.uses)) == 2


def test_what_a_repeat_carries():
    text = """
    model M(x[B, D], z[B, D]) {
      y = z * 2
      repeat L {
        h = x + z
        x = y * h
        y = h
      }
      return x, y
    }
    """
    module = lowered(text)
    (repeat,) = ops(module, stg.RepeatOp)
    assert [v.name_hint for v in repeat.carry_args] == ["x", "y"]
    (output,) = ops(module, stg.OutputOp)
    assert list(output.values) == list(repeat.results)


def test_a_contraction_sums_over_shared_dims():
    text = "model M(x[B, S, D]) { weight w[D, H, E], v[D, E, H] return x @ w @ v[D -> C] }"
    first, second = ops(lowered("dim C = D\n" + text), stg.ContractOp)
    assert first.over.data == ("D",)
    assert second.over.data == ("H", "E")


def test_a_contraction_keeps_what_its_statement_names():
    text = "model M(x[B, S, D], y[B, T, D]) { s[B, T, S] = -(x @ y) / sqrt(D) return s }"
    module = lowered(text)
    (contract,) = ops(module, stg.ContractOp)
    assert contract.over.data == ("D",)
    assert result(module).names == ("B", "T", "S")
    assert not ops(module, stg.TransposeOp)


def test_what_a_module_returns_names_dims_too():
    text = """
    module Gate(x[B, S, D], w[B, D]) -> [B, S, D] { return x @ w }
    model M(x[B, S, D], w[B, D]) { return Gate(x, w), x @ w }
    """
    first, second = ops(lowered(text), stg.ContractOp)
    assert (first.over.data, second.over.data) == ((), ("B", "D"))


def test_an_outer_product_names_its_dims():
    module = lowered("model M(a[B, S], c[D]) { y[D, B, S] = a @ c return y }")
    assert result(module).names == ("D", "B", "S")


def test_dims_come_in_the_order_that_is_asked_for():
    text = """
    module F(x[S, B, D]) -> [D, B, S] { return silu(x) }
    model M(x[B, S, D]) { return F(x) }
    """
    module = lowered(text)
    assert result(module).names == ("D", "B", "S")
    assert len(ops(module, stg.TransposeOp)) == 2


def test_the_smaller_operand_is_repeated_whichever_side_it_is_on():
    for text in ("w * x", "x * w", "w - x", "w / x"):
        module = lowered(f"model M(x[B, S, D]) {{ weight w[D] return {text} }}")
        assert result(module).names == ("B", "S", "D")


def test_numbers_are_constants_of_the_other_operands_dtype():
    module = lowered("model M(x[B, D]: bf16) { return 2 ** 3 * x + 1 / sqrt(D / H) }")
    values = [(op.value.data, op.constant.type) for op in ops(module, stg.ConstantOp)]
    number = TensorType.of((), "bf16")
    assert values == [("2 ** 3", number), ("1 / sqrt(D / H)", number)]


def test_renaming_several_dims_at_once():
    module = lowered("dim C = D\nmodel M(x[B, S, D]) { return x[S -> T, D -> C] }")
    (rename,) = ops(module, stg.RenameOp)
    assert (rename.old.data, rename.new.data) == (("S", "D"), ("T", "C"))


def test_precision_gives_dtypes():
    text = """
    model M(x[B, D], i[B]: i32) { weight w[D], v[D]: fp64 return x * w, x * v, i }
    plan p { precision { weights = fp16, activations = bf16 } }
    """
    module = lowered(text)
    (output,) = ops(module, stg.OutputOp)
    dtypes = [str(v.type).rsplit(", ")[-1] for v in output.values]
    assert weights(module)["w"] == "!stg.tensor<[D], fp16>"
    assert dtypes == ["bf16>", "fp64>", "i32>"]  # weights are converted for their readers


def test_a_user_op_has_its_costs():
    text = """
    op scan(x[B, S, D]) -> [B, S, D], [B]: i32 { flops = 6*B*S*D, bytes = 4*S, backward_flops = 7 }
    model M(x[B, S, D]) { y, _i = scan(x) return y }
    """
    (op,) = ops(lowered(text), stg.UserOp)
    costs = (op.stated_flops, op.stated_bytes, op.backward_flops, op.backward_bytes)
    assert [str(cost.data) for cost in costs] == ["6*B*D*S", "4*S", "7", "8*S"]
    assert [str(t) for t in op.result_types] == [
        "!stg.tensor<[B, S, D], fp32>",
        "!stg.tensor<[B], i32>",
    ]


def test_a_user_op_may_be_several_kernels():
    """By a number, or a formula whose value it is; one where nothing is said."""
    text = """
    dim X = 16
    op one(x[B, S, D]) -> [B, S, D] { flops = 0, bytes = 0 }
    op more(x[B, S, D]) -> [B, S, D] { flops = 0, bytes = 0, kernels = 2 * X + 2 }
    op most(x[B, S, D]) -> [B, S, D] { flops = 0, bytes = 0, backward_kernels = 7 }
    model M(x[B, S, D]) { return most(more(one(x))) }
    """
    found = [
        (op.num_kernels(), op.backward_kernels and op.backward_kernels.data)
        for op in ops(lowered(text), stg.UserOp)
    ]
    assert found == [(1, None), (34, None), (1, 7)]


def test_a_user_op_may_compute_elements_one_by_one():
    """Its share of what it says; none where nothing is said."""
    text = """
    op plain(x[B, S, D]) -> [B, S, D] { flops = 0, bytes = 0, backward_scalars = 3 * B }
    op one_by_one(x[B, S, D]) -> [B, S, D] { flops = 0, bytes = 0, scalars = 1.5 * B * S }
    model M(x[B, S, D]) { return one_by_one(plain(x)) }
    """
    found = [
        (str(op.num_scalars()), op.backward_scalars and str(op.backward_scalars.data))
        for op in ops(lowered(text), stg.UserOp)
    ]
    assert found == [("0", "3*B"), ("3*B*S/2", None)]


def test_ops_know_their_place_and_scope():
    module = lowered(BLOCKS + "model M(x[B, S, D]) {\n  return Block(x)\n}")
    norm = ops(module, stg.RmsNormOp)[0]
    span = span_of(norm.location)
    assert span is not None
    assert (span.file, span.line, span.column) == ("m.stg", 17, 14)
    assert stg.scope_of(norm) == "Block"
    for op in module.walk():
        if op is not module:
            assert span_of(op.location) is not None, op


def test_values_keep_their_names():
    module = lowered("model M(x[B, D]) { hidden = silu(x) return hidden }")
    (silu,) = ops(module, stg.UnaryOp)
    assert silu.result.name_hint == "hidden"


PLACED = """
model M(x[B, S, D]) {
  weight head[D, H, E]
  repeat L { x = Linear(Linear(x)) }
  return x @ head
}
plan p {
  mesh tp = 2
  %s
}
"""


@pytest.mark.parametrize(
    ("override", "dims", "times"),
    [
        ("shard Linear.y[S] over tp", ("S",), 2),
        ("shard Linear_2.y[S] over none", ("S",), 1),
        ("shard M.Linear.y over none", ("B", "S", "H", "E"), 2),
        ("shard M.head[D] over tp", ("D",), 1),
        ("shard head[D] over tp", ("D",), 1),
        ("shard Linear.w[D] over none", ("D",), 2),
        ("shard Linear.x[D] over none", ("D",), 2),
    ],
)
def test_overrides_place_values(override: str, dims: tuple[str, ...], times: int):
    places = ops(lowered(BLOCKS + PLACED % override), stg.PlaceOp)
    assert len(places) == times
    for place in places:
        assert place.dims.data == dims
        assert place.axes.data == (("tp",) if "over tp" in override else ())


def test_readers_see_the_placed_value():
    module = lowered(BLOCKS + PLACED % "shard Linear_2.y[S] over tp")
    (place,) = ops(module, stg.PlaceOp)
    assert len(list(place.x.uses)) == 1
    assert len(list(place.result.uses)) == 1


def test_imported_modules_and_plans(tmp_path: Path):
    (tmp_path / "blocks.stg").write_text(
        'import "sizes.stg"\nmodule Twice(x[B]) -> [B] { return 2 * x }\n'
        "module Unused(x[Nowhere]) -> [B] { return y }\n"
        "model Ignored(x[B]) { return x }\nplan p { mesh dp = 2 }"
    )
    (tmp_path / "sizes.stg").write_text("dim B = 4\n")
    main = tmp_path / "main.stg"
    main.write_text('import "blocks.stg"\nimport "sizes.stg"\nmodel M(x[B]) { return Twice(x) }\n')
    checked = check(parse_file(main))
    assert checked.plan.mesh == {"dp": 2}
    assert list(checked.source.files) == [
        str(tmp_path / name) for name in ("sizes.stg", "blocks.stg", "main.stg")
    ]
    lower(checked).verify()


def test_a_module_of_the_file_itself_is_checked_even_if_nothing_calls_it():
    with pytest.raises(CompileError, match="E0201"):
        lowered("module F(x[B]) -> [B] { return y }\nmodel M(x[B]) { return x }")
