"""What an op of a plug-in says wrongly of itself: of its class as it is loaded, of its answers where the model has it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr, i64
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from stagec.cli import main
from stagec.dialects import dist, sched, stg
from stagec.dialects.op import DialectOp, OpClass
from stagec.dialects.stg.op_classes import mistakes_of_class
from stagec.dialects.types import TensorType
from stagec.driver import compile_program
from stagec.frontend import check, parse_text
from stagec.pass_manager import Stops
from tests.unit.examples import FOLDER, compile_example
from tests.unit.explaining.test_sweep import CLAUSES, TINY

OP = """
from typing import ClassVar

from xdsl.irdl import irdl_op_definition, operand_def, result_def

from stagec.dialects import stg
from stagec.dialects.interfaces import elements
from stagec.dialects.memory import ALONE, Effects, Overwrite
from stagec.dialects.work import Work


@irdl_op_definition
class BiasedOp(stg.TensorOp):
    name = "mine.biased"
    WORK: ClassVar = Work.ELEMENTWISE
    LIKE: ClassVar = 0
    SIGNATURES: ClassVar = (stg.Signature("biased", ("x", "bias"), "x + bias"),)
    # attributes
    x = operand_def(stg.TensorType)
    bias = operand_def(stg.TensorType)
    y = result_def(stg.TensorType)

    def __init__(self, x, bias):
        super().__init__(operands=[x, bias], result_types=[x.type])

    # methods

    def effects(self):
        return Effects((Overwrite(0, 0, ALONE),))

    def flops(self):
        return elements(self.y)

    def gradient(self, dys, gradients):
        made = gradients.insert(BiasGradOp(dys[0], self.bias), self.bias)
        gradients.contribute(self.x, dys[0])
        gradients.contribute(self.bias, made.results[0])


@irdl_op_definition
class BiasGradOp(stg.TensorOp):
    name = "mine.bias_grad"
    dy = operand_def(stg.TensorType)
    bias = operand_def(stg.TensorType)
    dbias = result_def(stg.TensorType)

    def __init__(self, dy, bias):
        splits = stg.tensor_type(dy).splits
        summed = sorted(axis for name in ("B", "S") for axis in splits.get(name, ()))
        super().__init__(operands=[dy, bias], result_types=[bias.type.with_partial(summed)])

    def flops(self):
        return elements(self.dy)
"""
MODEL = """
dim B = 8
dim S = 4
dim D = 16
dim E = 32
module Layer(x[B, S, D]) -> [B, S, D] {
  weight w[D, E], b[E], v[E, D]
  return biased(x @ w, b) @ v
}
model M(x[B, S, D]) {
  repeat 2 { x = Layer(x) }
  loss = mean(x, over = [B, S, D])
}
plan p { mesh dp = 2, tp = 2
  shard B over dp
  shard E over tp }
"""
ATTRIBUTES, METHODS = "    # attributes\n", "    # methods\n"
CLASSES = {
    "name": ('"mine.biased"', '"biased"', "`biased` is no name of an op"),
    "work": ("Work.ELEMENTWISE", "'elementwise'", "`WORK` is a kind of"),
    "like": ("LIKE: ClassVar = 0", "LIKE: ClassVar = 2", "`LIKE` is the number of one of its 2"),
    "linear": (ATTRIBUTES, "    LINEAR_OPERANDS: ClassVar = (5,)\n", "`LINEAR_OPERANDS` has 5"),
    "linear_int": (ATTRIBUTES, "    LINEAR_OPERANDS: ClassVar = 0\n", "is a tuple of numbers"),
    "hidden": (ATTRIBUTES, "    NUM_STATISTICS: ClassVar = 1\n", "`NUM_STATISTICS` is how many"),
    "view": (ATTRIBUTES, "    IS_VIEW: ClassVar = True\n", "says what it costs: `flops`"),
    "check_call": (
        ATTRIBUTES,
        "    def check_call(self, call): pass\n",
        "`check_call` is to be a `classmethod`",
    ),
    "signatures": ('stg.Signature("biased"', '("biased"', "is a tuple of `stg.Signature`"),
    "name_number": ('"mine.biased"', "5", "`name` of `BiasedOp` is a text, not 5"),
    "name_twice": (
        '"mine.bias_grad"',
        '"mine.biased"',
        "`BiasedOp` and `BiasGradOp` have one name",
    ),
    "undecorated": (
        "@irdl_op_definition\nclass BiasedOp",
        "class BiasedOp",
        "its class `BiasedOp` is no `@irdl_op_definition`",
    ),
    "no_results": (
        "    def __init__(self, x, bias):\n        super().__init__(operands=[x, bias], result_types=[x.type])\n",
        "",
        "has no `__init__` that says the types of its results",
    ),
    "source": (ATTRIBUTES, "    SOURCE: ClassVar = 2017\n", "`SOURCE` is a text, not 2017"),
    "flops_row": (ATTRIBUTES, '    FLOPS: ClassVar = (4, "z")\n', "`FLOPS` is how many"),
    "flops_number": (ATTRIBUTES, "    FLOPS: ClassVar = 4\n", "`FLOPS` is how many"),
    "usage": (
        'stg.Signature("biased", ("x", "bias"), "x + bias")',
        'stg.Signature.of("biased(x, bias", "x + bias")',
        "`biased(x, bias` is no signature",
    ),
    "word": ('Signature("biased"', 'Signature("repeat"', "`repeat` is a word of the language"),
    "no_tensor_op": (
        "class BiasedOp(stg.TensorOp)",
        "class BiasedOp(stg.ProgramOp.__base__)",
        "it has `SIGNATURES`, and is no `stg.TensorOp`",
    ),
    "dialect": ('"mine.biased"', '"stg.biased"', "it comes from stagec"),
    "operands": ('("x", "bias"), "x + bias"', '("x",), "x"', "its constructor does not take (x)"),
    "option": (
        '"x + bias"',
        '"x + bias", (stg.Option("by", "sizes"),)',
        "the option `by` is of a kind `sizes`",
    ),
}
FORGETS_TO_RETURN = """
    def indices(self):
        base = super().indices()
        return stg.Indices(base.operands, base.results, statistics=frozenset(base.operands[1]))

    def decomposed(self, steps):
        steps.do(stg.UnaryOp("square", self.x))
"""
ANSWERS = {
    "dtype": ("[x.type])", "[x.type.with_dtype('fp64')])", "result 0 is fp64"),
    "flops_int": ("elements(self.y)", "4", "`flops` is to be a `Size`"),
    "flops_none": ("elements(self.y)", "None", "`flops` is to be a `Size`"),
    "flops_negative": ("elements(self.y)", "-elements(self.y)", "`flops` is negative: -B*E*S"),
    "again": (METHODS, "    def flops_again(self): return 1\n", "`flops_again` is to be a `Size`"),
    "decomposed": (METHODS, FORGETS_TO_RETURN, "`decomposed` inserts steps and returns nothing"),
    "bytes": (METHODS, "    def moved_bytes(self): return 1, 2\n", "`moved_bytes` is to be"),
    "node_name": (METHODS, "    @property\n    def node_name(self): return 5\n", "to be a text"),
    "node_name_method": (METHODS, "    def node_name(self): return 'b'\n", "is a `property`"),
    "no_indices": (METHODS, "    def indices(self): return None\n", "is to be `stg.Indices`"),
    "blocked": (
        METHODS,
        "    def indices(self):\n        base = super().indices()\n"
        "        return stg.Indices(base.operands, base.results, 'E')\n",
        "`blocked` of `indices` is a `frozenset` of names",
    ),
    "no_such_index": (
        METHODS,
        "    def indices(self):\n        base = super().indices()\n"
        "        return stg.Indices(base.operands, base.results, statistics=frozenset(['Q']))\n",
        "`statistics` of `indices` has `Q`",
    ),
    "no_results": (
        "        super().__init__(operands=[x, bias], result_types=[x.type])\n",
        "        self.results = ()\n",
        "its `__init__` makes no results",
    ),
    "no_type": ("result_types=[x.type]", "result_types=[x]", "which is no tensor's"),
    "property": ("result_types=[x.type]", "result_types=[x.type], by=1", "has no property `by`"),
    "raises_in_check_call": (
        METHODS,
        "    @classmethod\n    def check_call(cls, call): call.none\n",
        "in `check_call`, biased.py:",
    ),
    "task_costs_none": (
        METHODS,
        "    def lowered(self, mesh):\n        from stagec.dialects import sched\n"
        "        return [sched.ComputeOp('b', [self.x], [self.y.type], elements(self.x), None, None)]\n",
        "`reads` of what `lowered` makes is to be a `Size`",
    ),
    "overwrite": (
        "Effects((Overwrite(0, 0, ALONE),))",
        "Effects(Overwrite(0, 0))",
        "a tuple of `Overw",
    ),
    "tasks_none": (
        METHODS,
        "    def lowered(self, mesh): pass\n",
        "returns a list of tasks, not None",
    ),
    "effects": ("return Effects((Overwrite(0, 0, ALONE),))", "return None", "`effects` is to be"),
    "word": ("Overwrite(0, 0, ALONE)", "Overwrite(0, 0, 'sometimes')", "`sometimes`; there are"),
    "operand": ("Overwrite(0, 0, ALONE)", "Overwrite(2, 0)", "overwrites operand 2 by result 0"),
    "small": ("Overwrite(0, 0, ALONE)", "Overwrite(1, 0, ALONE)", "operand 1, which is smaller"),
    "forgets_bias": (
        "        gradients.contribute(self.bias, made.results[0])\n",
        "",
        "`gradient` says nothing of operand 1, <[E/tp]",
    ),
    "forgets_x": (
        "        gradients.contribute(self.x, dys[0])\n",
        "",
        "`gradient` says nothing of operand 0",
    ),
    "nowhere": (
        "gradients.insert(BiasGradOp(dys[0], self.bias), self.bias)",
        "BiasGradOp(dys[0], self.bias)",
        "`mine.bias_grad` makes, which is nowhere",
    ),
    "no_operand": ("contribute(self.x, dys[0])", "contribute('x', dys[0])", "contributes to 'x'"),
    "no_op": (
        "insert(BiasGradOp(dys[0], self.bias), self.bias)",
        "insert(self.bias, self.bias)",
        "and not a new op",
    ),
    "steps_of_other_types": (
        METHODS,
        FORGETS_TO_RETURN + "        return [self.bias]\n",
        "for result 0, which is !stg.tensor<[B/",
    ),
    "steps_are_values": (
        METHODS,
        FORGETS_TO_RETURN + "        return [stg.AddOp(self.x, self.x)]\n",
        "returns `stg.add` for result 0: it is a value",
    ),
    "swapped": (
        "contribute(self.bias, made.results[0])",
        "contribute(self.bias, dys[0])",
        "it has the same dims",
    ),
    "nothing": ("contribute(self.bias, made.results[0])", "contribute(self.bias, None)", "None"),
    "tasks": (
        METHODS,
        "    def lowered(self, mesh): return [stg.AddOp(self.x, self.x)]\n",
        "`stg.add`, which is no task",
    ),
    "no_tasks": (METHODS, "    def lowered(self, mesh): return []\n", "has the results none"),
    "statistics": (
        METHODS,
        "    def indices(self):\n        base = super().indices()\n"
        "        return stg.Indices(base.operands, base.results, statistics=frozenset(['E']))\n",
        "takes statistics over dims that are split over [tp]",
    ),
}


def said_of(
    mistake: tuple[str, str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> str:
    before, after, _ = mistake
    assert OP.count(before) == 1
    model, op = tmp_path / "m.stg", tmp_path / "biased.py"
    model.write_text(MODEL)
    op.write_text(OP.replace(before, after))
    assert main([str(model), "--load-pass", str(op), "-q"]) == 1
    return capsys.readouterr().err


def test_it_is_right_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model, op = tmp_path / "m.stg", tmp_path / "biased.py"
    model.write_text(MODEL)
    op.write_text(OP)
    assert main([str(model), "--load-pass", str(op), "-q"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("mistake", CLASSES.values(), ids=list(CLASSES))
def test_what_a_class_says(mistake, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = said_of(mistake, tmp_path, capsys)
    assert said.startswith("error[E0712]")
    assert mistake[2] in said


@pytest.mark.parametrize("mistake", ANSWERS.values(), ids=list(ANSWERS))
def test_what_an_op_answers(mistake, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = said_of(mistake, tmp_path, capsys)
    assert said.startswith("error[E0713]: the op `mine.biased`")
    assert mistake[2] in said
    assert "m.stg:8:10" in said


def test_a_sum_over_devices_that_is_not_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Without `partial`, a gradient would miss its all-reduce on every rank alike."""
    said = said_of(("bias.type.with_partial(summed)", "bias.type", ""), tmp_path, capsys)
    assert said.startswith("error[E0709]: `mine.bias_grad`")
    assert "after the pass `build-backward`" in said
    assert "plug-ins" in said


def test_an_exception_in_an_op(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = said_of(("contribute(self.x, dys", "contribute(self.none, dys", ""), tmp_path, capsys)
    assert said.startswith("error[E0713]: the op `mine.biased` failed: AttributeError")
    assert "m.stg:8:10" in said


def test_an_exception_in_a_constructor(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The op is none yet that has a place: what asked for it has."""
    said = said_of(("splits.get(name, ())", "splits[name]", ""), tmp_path, capsys)
    assert said.startswith("error[E0713]: the op `mine.bias_grad` failed: KeyError: 'S'")
    assert "m.stg:8:10" in said


def test_where_an_exception_comes_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Raised by what a plug-in calls, it has a line of the plug-in all the same."""
    said = said_of(
        ("insert(BiasGrad", "insert(None or BiasGradOp.made, BiasGrad", ""), tmp_path, capsys
    )
    assert "in `gradient`, biased.py:" in said
    said = said_of(("return elements(self.y)", "return elements(None)", ""), tmp_path, capsys)
    assert "in `flops`, biased.py:" in said


def test_what_is_made_of_a_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    method = "    @classmethod\n    def from_call(cls, call, operands): pass\n"
    said = said_of((METHODS, method, ""), tmp_path, capsys)
    assert said.startswith("error[E0713]: `from_call` makes None")
    assert "m.stg:8:10" in said


def test_operands_and_results_that_are_left_out():
    x = create_ssa_value(TensorType.of(["B"], "bf16"))
    with pytest.raises(TypeError, match="without its operand `right`"):
        stg.MulOp(x)
    with pytest.raises(TypeError, match="1 results, and `made` and `like` say the types of 2"):
        stg.MulOp(x, x, like=[x.type, x.type])


@pytest.mark.seldom
def test_explain_names_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """That of the class which was loaded last, where a process has loaded several of one name."""
    for year in (2031, 2032):
        model, op = tmp_path / "m.stg", tmp_path / f"biased{year}.py"
        model.write_text(MODEL)
        source = f"One and Another, {year}, section 4"
        op.write_text(OP.replace(ATTRIBUTES, f'    SOURCE: ClassVar = "{source}"\n'))
        words = ["explain", str(model), "bytes", "--load-pass", str(op)]
        assert main(words) == 0, capsys.readouterr().err
        assert source in " ".join(capsys.readouterr().out.split())


def test_our_own_classes():
    ops = [op for each in (stg.Stg, dist.Dist, sched.Sched) for op in each.operations]
    # The frontend builds calls of `append` by itself: its first operand is no tensor of the text.
    assert [m for op in ops if op is not stg.AppendOp for m in mistakes_of_class(op)] == []


def classes_of_ops(kind: type[DialectOp] = DialectOp) -> Iterator[type[DialectOp]]:
    yield kind
    for each in kind.__subclasses__():
        yield from classes_of_ops(each)


def test_an_op_is_of_the_classes_that_its_own_inherits() -> None:
    """`isinstance`, as ops are asked, against `issubclass`, which is that of `abc`; what is no op of ours is of none of them."""
    kinds = {*classes_of_ops()}
    ops = {type(op): op for op in compile_example(FOLDER / "gpt.stg", "dp4_tp8").module.walk()}
    assert len(ops) > 10
    for kind in kinds:
        assert isinstance(kind, OpClass)
        for own, op in ops.items():
            assert isinstance(op, kind) == issubclass(own, kind)
        assert not isinstance(kind, kind)
        assert not isinstance("", kind)


def test_parts_are_held_against_the_definition_whatever_was_seen_before() -> None:
    """What xDSL's own check says of an op with other properties and operands, ours says, too: it asks once for ops whose parts are of the same classes."""
    rng, seen = random.Random(0), Counter[str]()
    number = create_ssa_value(i64)
    values = (StringAttr("?"), UnitAttr(), IntegerAttr(-1, i64))

    def look(name: str, module: ModuleOp) -> None:
        ops = module.clone().walk()
        every = [op for op in ops if isinstance(op, DialectOp) and not op.regions]
        for op in rng.sample(every, min(5, len(every))):
            definition = op.get_irdl_definition()
            assert not said(definition.verify, op) + said(type(op).verify_, op)
            for key in (*op.properties, *rng.sample(sorted(definition.properties), 1), "bogus"):
                for value in (None, *values):
                    other = op.clone()
                    given = {**op.properties, key: value}
                    other.properties = {n: v for n, v in given.items() if v is not None}
                    seen[compare(other)] += 1
            for operands in (op.operands[:-1], [*op.operands, number], [number] * len(op.operands)):
                other = op.clone()
                other.operands = operands
                seen[compare(other)] += 1

    def compare(op: DialectOp) -> str:
        expected = said(op.get_irdl_definition().verify, op)
        assert not expected or said(type(op).verify_, op) == expected
        return expected

    text = TINY.replace("CLAUSES", CLAUSES["v"]).replace("dim L = 12", "dim L = 4")
    compile_program(check(parse_text(text)), stops=Stops(on_pass=look, verify=False))
    assert len(seen) > 100


def said(verify: Callable[[Any], None], op: Operation) -> str:
    try:
        verify(op)
    except VerifyException as error:
        return str(error)
    return ""
