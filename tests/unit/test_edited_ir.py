"""IR that somebody edits: what is missing there is said, at the op or by the name of the row, task or rank."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TypeVar

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from stagec.diagnostics import CompileError
from stagec.dialects import dist, sched, stg
from stagec.dialects.memory import (
    OPERAND,
    OWN,
    Buffer,
    Kind,
    MemoryAttr,
    StoredAttr,
)
from stagec.dialects.sched.crossing import StageSend
from stagec.dialects.sched.node import NodeOp
from stagec.dialects.sched.tasks import Order, OrderAttr, PerRow, PerRowAttr, Rows
from stagec.dialects.types import tensor_of
from stagec.driver import Stops, compile_ir, compile_text
from stagec.ir_text import parse_ir, print_ir
from stagec.memory.value_table import TableMaker
from stagec.plugins import registry
from stagec.rewriting import programs
from stagec.symbolic import constant
from stagec.unrolling.module import rank_runs
from stagec.unrolling.rank import StageRun
from tests.differential.random_serving import draw_serving
from tests.resuming.cuts import random_cuts
from tests.resuming.texts import random_text
from tests.unit.seldom import mostly

Found = TypeVar("Found", bound=Operation)
PIPELINED = 0
"""The seed of a plan with two stages."""
ZERO_2 = next(seed for seed in range(99) if "zero 1" in random_text(seed))
"""That of one that splits gradients."""
SHARDED = 5
"""The seed of a plan with ZeRO 3."""


@cache
def texts(seed: int) -> dict[str, str]:
    """The IR of a random plan after each pass."""
    return {name.partition(" ")[2]: ir for name, ir in random_cuts(seed)[0].items()}


def parsed(text: str) -> ModuleOp:
    return module_of(text).clone()


@cache
def module_of(text: str) -> ModuleOp:
    context = Context()
    for name, factory in registry().dialects.items():
        context.register_dialect(name, factory)
    return parse_ir(context, text, "edited.mlir")


def last_before(found: dict[str, str], name: str) -> str:
    names = list(found)
    return found[names[names.index(name) - 1]]


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_a_sum_that_nobody_makes(seed: int) -> None:
    """One of the ops that sum over ranks is taken away: whoever reads the terms as if they were the sum says so."""
    module = parsed(last_before(texts(seed), "lower-to-tasks"))
    summing = [
        op
        for op in module.walk()
        if isinstance(op, dist.AllReduceOp | dist.AllReduceGradientOp)
        and tensor_of(op.operands[0].type).partial != tensor_of(op.results[0].type).partial
    ]
    op = random.Random(seed).choice(summing)
    for operand, result in zip(op.operands, op.results, strict=True):
        result.replace_all_uses_with(operand)
    op.detach()
    op.erase()
    with pytest.raises(CompileError, match=r"E070[89]"):
        compile_ir(print_ir(module), "edited.mlir")


def refused(module: ModuleOp) -> str:
    with pytest.raises(CompileError) as caught:
        compile_ir(print_ir(module), "edited.mlir")
    (found, *_) = caught.value.diagnostics
    assert found.code == "E0709"
    assert found.span is not None
    return found.message


def ops_of(module: ModuleOp, kind: type[Found]) -> list[Found]:
    return [op for op in module.body.ops if isinstance(op, kind)]


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_a_row_that_nobody_issues(seed: int) -> None:
    chance = random.Random(seed)
    module = parsed(last_before(texts(seed), "prefetch-gathers"))
    tasks = chance.choice(ops_of(module, sched.TasksOp))
    name, rows = chance.choice(list(tasks.rows.data.items()))
    table = np.delete(rows.table, chance.randrange(len(rows)), axis=0)
    tasks.with_rows({**tasks.rows.data, name: Rows.of_table(table)})
    assert f"`{name}` of `@{tasks.sym_name.data}` has no row" in refused(module)


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(4)))
def test_a_task_that_no_rank_runs(seed: int) -> None:
    """Whichever is taken out of an order, or is of another microbatch, or has another peer."""
    chance = random.Random(seed)
    for edit in ("gone", "later", "farther"):
        module = parsed(last_before(texts(seed), "prefetch-gathers"))
        program = chance.choice(ops_of(module, sched.RankProgramOp))
        table = program.order.data.table.copy()
        inside = np.flatnonzero((table[:, 2] >= 0) & (edit != "farther" or table[:, 3] > 0))
        if edit == "gone":
            table = np.delete(table, chance.randrange(len(table)), axis=0)
        elif len(inside):
            table[chance.choice(inside.tolist()), 2 if edit == "later" else 3] += 100
        else:
            continue
        program.order = OrderAttr(Order.of_table(table))
        assert "@" in refused(module) or edit == "later"


def test_ranks_that_run_what_others_run() -> None:
    module = parsed(last_before(texts(PIPELINED), "prefetch-gathers"))
    first, second = ops_of(module, sched.RanksOp)
    first.program = second.program
    assert refused(module) == "`sched.ranks`: no rank runs stage 0 in microbatch 0"


@pytest.mark.parametrize("name", ["waits", "ahead"])
def test_rows_before_the_first(name: str) -> None:
    """What counts rows back ends at the first."""
    module = parsed(texts(PIPELINED)["order-communication"])
    program = ops_of(module, sched.RankProgramOp)[0]
    lengths = np.array(program.waits.data.lengths) if program.waits is not None else np.zeros(0)
    numbers = np.full(int(lengths.sum()), -1 if name == "waits" else 0)
    numbers[0] = 2
    program.properties[name] = PerRowAttr(PerRow(numbers, lengths))
    assert f"`{name}` of row 0 of `" in refused(module)


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(4)))
def test_nothing_is_said_twice(seed: int) -> None:
    """Each op beside the programs, put in again: another of the two would be believed by each that reads them. Of rules the first holds, in each place."""
    chance = random.Random(seed)
    name, text = chance.choice(sorted(texts(seed).items()))
    for number, op in enumerate(parsed(text).body.ops):
        if isinstance(op, dist.RuleOp):
            continue
        module = parsed(text)
        again = list(module.body.ops)[number]
        module.body.block.insert_op_after(again.clone(), again)
        message = refused(module)
        assert re.search("another one|redefinition|said twice|there are two", message), (
            name,
            op.name,
        )


def test_a_dim_that_is_called_as_an_axis() -> None:
    text = texts(PIPELINED)["lower-to-tasks"]
    module = parsed(text)
    module.body.block.add_op(stg.DimOp("pp", constant(4)))
    assert refused(module) == "`stg.dim`: `pp` is an axis of the mesh"


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(4)))
def test_a_transfer_without_another_end(seed: int) -> None:
    """Before there are tasks: what one stage gives, the next one takes, as it was given."""
    chance = random.Random(seed)
    for edit in ("gone", "wider", "other number"):
        module = parsed(texts(PIPELINED)[chance.choice(("split-stages", "lower-to-tasks"))])
        sends = [op for op in module.walk() if isinstance(op, StageSend)]
        op = chance.choice(sends)
        if edit == "gone":
            op.detach()
            op.erase()
        elif edit == "wider":
            block, wide = op.parent_block(), stg.CastOp(op.value, "fp64")
            assert block is not None
            block.insert_op_before(wide, op)
            op.operands[0] = wide.result
        else:
            op.number = IntegerAttr(3, 64)
        assert "at the other end" in refused(module)


def test_a_mesh_that_is_not_that_of_the_stages() -> None:
    """Before ranks have programs: what a schedule runs are the stages that there are, on the ranks that there are."""
    text = texts(PIPELINED)["split-stages"]
    for old, new, message in (
        ("pp = 2", "pp = 6", r"6 ranks do not share the 4 of `dist.stages`"),
        ("pp = 2", f"pp = {10**25}", r"it has more than \d+ ranks"),
        ('ranks "pp"', 'ranks "3"', r"it is of 3 ranks, and `pp` has 2"),
    ):
        edited = text.replace(old, new)
        with pytest.raises(CompileError, match=message):
            compile_ir(edited, "edited.mlir")


def test_a_number_is_a_whole_number() -> None:
    """`false` is one of a single bit, and prints as no number."""
    text = texts(PIPELINED)["order-communication"]
    edited = re.sub(r"gradient_of = \d+ : i64", "gradient_of = false", text, count=1)
    with pytest.raises(CompileError, match="`gradient_of` is to be a whole number, not false"):
        compile_ir(edited, "edited.mlir")


def test_a_size_that_nobody_knows() -> None:
    """Also where an op of a model states one, before there are tasks."""
    drawn = draw_serving(random.Random(17))
    stops = Stops(after="localize-shapes")
    text = print_ir(compile_text(drawn.text, "net.stg", plan=drawn.plan, stops=stops).module)
    edited = re.sub(r' pairs "', r' pairs "Q7*', text, count=1)
    assert edited != text
    assert "the size `Q7` has no number" in refused(parsed(edited))


def freed_early(program: stg.ProgramOp, chance: random.Random) -> None:
    """Let the first reader of some value in a block be the only one that frees it."""
    values = [
        result
        for op in program.walk()
        for result, plan in zip(op.results, buffers_of(op), strict=False)
        if plan.where == OWN and len(readers(result)) > 1
    ]
    first, *others = readers(chance.choice(values))
    for (op, number), frees in [(first, True), *((each, False) for each in others)]:
        assert isinstance(op, NodeOp)
        plan = op.planned
        assert plan is not None
        rest = [each for each in plan.frees if each != number]
        op.memory = MemoryAttr(replace(plan, frees=tuple([*rest, number] if frees else rest)))


def buffers_of(op: Operation) -> tuple[Buffer, ...]:
    plan = sched.planned(op)
    return plan.buffers if plan is not None else ()


def readers(value: SSAValue) -> list[tuple[Operation, int]]:
    """In order, where all of them are nodes of one segment that have results of their own."""
    uses = [(use.operation, use.index) for use in value.uses]
    segments = {op.segment for op, _ in uses if isinstance(op, NodeOp)}
    alone = all(buffer.where == OWN for op, _ in uses for buffer in buffers_of(op))
    if len(segments) != 1 or not alone or any(not isinstance(op, NodeOp) for op, _ in uses):
        return []
    block = uses[0][0].parent_block()
    assert block is not None
    place = {op: at for at, op in enumerate(block.ops)}
    inside = len({op for op, _ in uses}) == len(uses) and all(op in place for op, _ in uses)
    return sorted(uses, key=lambda use: place[use[0]]) if inside else []


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(4)))
def test_a_read_of_what_was_freed(seed: int) -> None:
    module = parsed(texts(seed)["plan-memory"])
    freed_early(programs(module)[0], random.Random(seed))
    with pytest.raises(CompileError, match="after it was freed"):
        _ = compile_ir(print_ir(module), "edited.mlir").memory


@pytest.mark.seldom
@pytest.mark.parametrize("seed", range(4))
def test_what_stays_is_said(seed: int) -> None:
    """Of each weight and its state there is one row, of no negative size."""
    chance = random.Random(seed)
    for edit in ("gone", "twice", "negative", "everything"):
        module = parsed(texts(seed)["plan-memory"])
        op = chance.choice(ops_of(module, sched.StoredOp))
        rows = list(op.rows.data)
        at = chance.randrange(len(rows))
        if edit == "negative":
            rows[at] = replace(rows[at], num_bytes=rows[at].num_bytes * -1)
        else:
            rows[at : at + 1] = [rows[at]] * (2 * (edit == "twice"))
        op.rows = StoredAttr(tuple(rows))
        if edit == "everything":
            op.detach()
        wanted = {"gone": "no row", "twice": "two rows", "negative": "less than no bytes"}
        assert wanted.get(edit, "no row") in refused(module)


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(4)))
def test_a_sum_over_microbatches_is_in_one_dtype(seed: int) -> None:
    """That of the loop: the plan of a term that says another one, or none, would be another peak beside the same `memory.gradients`."""
    chance, text = random.Random(seed), texts(seed)["plan-memory"]
    spots = list(re.finditer(r'(?<=gradients) of "(\w+)"( stays)?', text))
    for edited in ("fp64", ""):
        spot = chance.choice(spots)
        new = f' of "{edited}"' if edited else ""
        wanted = f"`{edited}`" if edited else "no term of a sum"
        with pytest.raises(
            CompileError, match=f"E0709.*planned as .*{wanted}, and `stg.accumulate`"
        ):
            compile_ir(text[: spot.start()] + new + text[spot.end() :], "edited.mlir")


@pytest.mark.seldom
def test_gradients_are_read_off_their_buffers() -> None:
    """Whether a part of a reduced gradient takes memory of its own, is said by the node that reduces it, to whoever asks."""
    text = texts(ZERO_2)["plan-memory"]
    edited = re.sub(r"(reduce_scatter.*memory <\[)[^]]*", keeps_own, text)
    assert edited != text
    before, after = (compile_ir(each, "edited.mlir").memory[0] for each in (text, edited))
    assert before.static.num_bytes[Kind.GRADIENTS] > after.static.num_bytes[Kind.GRADIENTS]
    held = [each.timeline_by_kind()[Kind.GRADIENTS].sum() for each in (before, after)]
    assert held[0] != held[1]


def keeps_own(found: re.Match[str]) -> str:
    return re.sub(r"gradients in \d+", "gradients", found.group(0))


@pytest.mark.seldom
def test_what_is_freed_together_has_a_last() -> None:
    text = texts(SHARDED)["plan-memory"]
    assert " until " in text
    assert "no node says `last 9" in refused(parsed(text.replace(" until ", " until 9", 1)))


def edits(seed: int, name: str, *pairs: tuple[str, str]) -> Iterator[str]:
    """What is said of the IR after a pass, one text in it replaced by another."""
    text = texts(seed)[name]
    for old, new in pairs:
        spots = [at.start() for at in re.finditer(re.escape(old), text)]
        assert spots, old
        at = random.Random(seed).choice(spots)
        with pytest.raises(CompileError) as caught:
            compile_ir(text[:at] + new + text[at + len(old) :], "edited.mlir")
        (found, *_) = caught.value.diagnostics
        assert found.code == "E0709" and found.span is not None, found
        yield found.message


@pytest.mark.seldom
def test_sizes_that_cannot_be() -> None:
    """Of dims, weights, what nodes cost and what collectives leave."""
    assert list(
        edits(
            PIPELINED,
            "lower-to-tasks",
            ('stg.dim "L" = "4"', 'stg.dim "L" = "0"'),
            ('stg.dim "V"', 'stg.dim "V2"'),
            ("tp = 2>", "tp = 3>"),
            ('stg.weight "Mlp.down"', 'stg.weight "Mlp.up"'),
            ('"all_reduce"', '"all_gather"'),
            ('flops "2*', 'flops "-2*'),
            ("over [tp]", "over [tp, tp]"),
            ('on "comm.tp"', 'on "comm tp"'),
            ('on "comm.tp"', 'on "comm.pt"'),
            ('on "compute"', 'on "computes"'),
            (
                'on "compute" : (!stg.tensor<[B/(mb*dp), S], i32>, !stg.tensor<[V/tp, D], fp32>)',
                'on "compute" effects <overwrites 0 by 0> : (!stg.tensor<[B/(mb*dp), S], i32>, !stg.tensor<[V/tp, D], fp32>)',
            ),
        )
    ) == [
        "`stg.dim`: `L` is 0, and a dim has 1 or more",
        "`stg.weight`: the size `V` has no number",
        "`stg.weight`: `V/tp` is 64/3, not a whole number",
        "`stg.weight`: there are two of the path `Mlp.up`",
        "`sched.collective`: `all_gather` over 2 ranks does not make `4*B*D*S/(dp*mb)` bytes of `4*B*D*S/(dp*mb)`",
        "`sched.compute`: `flops` is less than nothing: `-2*B*D*F*S/(dp*mb*tp)` is -4096",
        "`sched.collective`: it is over `tp` twice",
        "`sched.collective`: a stream's name has no blanks, as `comm.dp` has none, and is not empty",
        "`sched.collective`: there is no stream `comm.pt`",
        "`sched.compute`: there is no stream `computes`",
        "`sched.compute`: it puts `4*B*D*S/(dp*mb)` bytes into the memory of operand 0, which has `4*B*S/(dp*mb)`",
    ]


def test_a_placement_over_an_axis_that_is_not_there() -> None:
    (found,) = edits(
        PIPELINED, "propagate-shardings", ("dist.placement<[B/dp", "dist.placement<[B/pd")
    )
    assert found.endswith("the mesh has no axis `pd`")


def test_a_plan_that_no_text_can_say() -> None:
    found = list(
        edits(
            PIPELINED,
            "insert-collectives",
            ('batch "B"', 'batch "Q"'),
            ('axes = ["tp"]', 'axes = ["tq"]'),
            ("virtual_stages = 2", "virtual_stages = -2"),
            ("overlap = {tp = true}", 'precision = {weights = "bf17"}'),
        )
    )
    assert found[:3] == [
        "`dist.plan`: `batch` names the dim `Q`, which does not exist",
        "`dist.plan`: `rules.1.axes` names the axis of the mesh `tq`, which does not exist",
        "`dist.plan`: `pipeline.virtual_stages` is 1 or more, not -2",
    ]
    assert found[3].endswith("`fp32` and `fp64`, not `bf17`")


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(4)))
def test_ops_are_where_they_are_read(seed: int) -> None:
    """What says something of the module, moved into a program; a weight, moved out of it or into a loop; a sum over what is no time."""
    chance = random.Random(seed)
    name, text = chance.choice(sorted(texts(seed).items()))
    module = parsed(text)
    program = programs(module)[0]
    beside = [op for op in module.body.ops if not isinstance(op, stg.ProgramOp)]
    op = chance.choice(beside)
    op.detach()
    program.body.block.insert_ops_before([op], next(iter(program.body.block.ops)))
    with pytest.raises(
        CompileError,
        match=r"is read beside programs alone|there is no `dist\.plan`|there is no mesh",
    ):
        compile_ir(print_ir(module), "edited.mlir")
    for outside in (True, False):
        module = parsed(texts(seed)["lower"])
        program = programs(module)[0]
        weight = ops_in(program, stg.WeightOp)[0].clone()
        weight.path = StringAttr("other")
        loop = ops_in(program, stg.RepeatOp)[0].body.block
        block = module.body.block if outside else loop
        first = next(iter(block.ops))
        block.insert_ops_before([weight], first)
        wanted = "in no `stg.program`" if outside else "it is in a loop"
        assert wanted in refused(module), name
    edited = texts(seed)["order-communication"].replace(
        'accumulate over "mb"', 'accumulate over "tp"', 1
    )
    assert refused(parsed(edited)).endswith("it is over `tp`, and microbatches are `mb`")


def ops_in(program: stg.ProgramOp, kind: type[Found]) -> list[Found]:
    return [op for op in program.walk() if isinstance(op, kind)]


@pytest.mark.parametrize("seed", mostly((0).__eq__, range(4)))
def test_a_place_in_the_text_is_one_of_the_plan(seed: int) -> None:
    """A key of `at` that names nothing which the plan says, misspelled or of a clause that is not there."""
    chance, text = random.Random(seed), texts(seed)["insert-collectives"]
    spots = list(re.finditer(r'(?<=[{ ])([\w.]+) = "net.stg:', text[: text.index("dist.passes")]))
    assert len(spots) > 3
    for spot in chance.sample(spots, 3):
        name = chance.choice((f"{spot[1]}q", f"q{spot[1]}", "zero.prefetch", "given.unit.Mlp"))
        edited = f'{text[: spot.start(1)]}{name} = "net.stg:1:1-1:2", {text[spot.start(1) :]}'
        assert refused(parsed(edited)).endswith(
            f"`at` has the place of `{name}`, and the plan says nothing there"
        )


@pytest.mark.seldom
def test_tasks_are_of_the_layers_of_their_stage() -> None:
    """Each by its name: another number for a dim or an axis would be believed in the tasks alone."""
    text = texts(PIPELINED)["order-communication"]
    for name in ("tp", "B", "stage.layers1"):
        edited = text.replace("layers {", f"layers {{{name} = 3 : i64, ", 1)
        assert "stage 0 has `stage.layers0 = 1`, and `@" in refused(parsed(edited))


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [1, 5, 7])
def test_what_is_overwritten_is_not_read_later(seed: int) -> None:
    """Behind views, in the next iteration and behind a repeat too: beside a memory that knows which value is where, node after node."""
    module = parsed(texts(seed)["order-communication"])
    stage = rank_runs(module)[0].stages[0]
    found: set[bool] = set()
    for op in dict.fromkeys(source.op for source in stage.layout.places):
        assert op.memory is not None
        planned = op.memory
        taken = [each.operand for each in planned.data.buffers[1:] if each.where == OPERAND]
        for number in sorted({*range(len(op.operands) if op.results else 0)} - {*taken}):
            first = replace(planned.data.buffers[0], where=OPERAND, operand=number)
            buffers = (first, *planned.data.buffers[1:])
            op.memory = MemoryAttr(replace(planned.data, buffers=buffers))
            is_read = reads_what_is_not_there(stage)
            found.add(is_read)
            maker = TableMaker(stage)
            if is_read:
                with pytest.raises(CompileError, match=r"overwrites operand \d+, which"):
                    maker.table()
            else:
                with suppress(CompileError):  # what nobody frees then
                    maker.table()
                assert not list(maker.read_when_overwritten())
        op.memory = planned
    assert found == {True, False}


def reads_what_is_not_there(stage: StageRun) -> bool:
    """Whether a node of a microbatch reads a value from memory that has another by then."""
    dataflow, tasks = stage.layout.dataflow, list(stage.layout.tasks)
    places = stage.layout.places.items()
    order = sorted(places, key=lambda each: (tasks.index(each[1].task), *each[1][1:]))
    memory: dict[object, object] = {}
    there: dict[object, object] = {}
    for source, _ in order:
        assert source.op.memory is not None
        read: list[list[object]] = []
        for operand in source.op.operands:
            keys = [*dataflow.origins(operand, source.path)]
            for key in keys:
                if isinstance(key[0], BlockArgument):  # an input, which nobody makes
                    there.setdefault(memory.setdefault(key, key), key)
            read.append([key for key in keys if key in memory])
        if any(there[memory[key]] != key for keys in read for key in keys):
            return True
        for result, buffer in zip(source.op.results, source.op.memory.data.buffers, strict=True):
            made = result, source.path
            taken = read[buffer.operand] if buffer.where == OPERAND else []
            memory[made] = made
            for key in taken:
                memory[made] = memory[key]
                there[memory[key]] = made
            there[memory[made]] = made
    return False
