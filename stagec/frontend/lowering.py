"""A checked model to the `stg` and `dist` dialects: `lower`.

Calls are written out; each has weights of its own, named by the calls that lead to it. A weight of a
repeated body is a stack, one per iteration, made outside of the repeat and sliced by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from stagec import symbolic
from stagec.analysis.placement import placing_chain, split_dims, unplaced
from stagec.analysis.sequences import OtherPrograms
from stagec.diagnostics import CompileError, Span, location_of, refused
from stagec.dialects import dist, stg
from stagec.dialects.attributes import SizeAttr
from stagec.dialects.types import FLOATS, StackType, TensorType, tensor_of
from stagec.dialects.use_def import followed, through
from stagec.frontend.checker.program import CheckedModel
from stagec.frontend.checker.steps import (
    AppendStep,
    CacheStep,
    CallStep,
    CheckedBody,
    NameStep,
    OnceStep,
    OpStep,
    PartsStep,
    ReadStep,
    RepeatStep,
    StateStep,
    Step,
    Value,
    WeightStep,
)
from stagec.frontend.padding import unpadded
from stagec.frontend.paths import Scope, is_named
from stagec.frontend.redundant_experts import add_copies, slots
from stagec.frontend.routed_tokens import transposed_experts
from stagec.frontend.serving.batch import BatchSums
from stagec.frontend.serving.program import (
    check_packed,
    check_states,
    count_pairs,
    drop_unread,
    has_bias,
    pad_experts,
    served_results,
    share_of_queries,
    split_pairs,
    split_sources,
    spread_keys,
    spread_of,
)
from stagec.frontend.serving.spreads import Spread, rules_of
from stagec.plans.clauses import Plan
from stagec.plans.in_ir import plan_op
from stagec.schedules.catalogue import FORWARD_ONLY
from stagec.symbolic import Size, conditions

Values = dict[Value, SSAValue]


def lower(checked: CheckedModel) -> ModuleOp:
    """The module: sizes, mesh, rules, contexts, and one `stg.program`. E0205 if a `combine` has the experts in another dim than its `dispatch`."""
    module = ModuleOp([])
    block = module.body.block
    copied = checked.sizes.copied
    copied_axes = {a: symbolic.product(map(symbolic.symbol, parts)) for a, parts in copied.items()}
    sums = checked.batch.sums if checked.batch is not None else None
    derived = sums.derived if sums is not None else {}
    for name in checked.sizes.dim_names:
        dim = checked.sizes.dims[name]
        pads = checked.sizes.unpadded.get(name)
        is_average = name in checked.sizes.averages
        size = derived.get(name, dim.size).substitute(copied_axes)
        block.add_op(_at(stg.DimOp(name, size, pads, average=is_average), dim.span))
    plan = checked.plan
    if plan.axes:
        mesh = dist.MeshOp(dist.MeshAxes(tuple((axis.name, axis.size) for axis in plan.axes)))
        span = plan.axes[0].span
        block.add_op(_at(mesh, span) if span else mesh)
    lowering = _Lowering(checked)
    program = lowering.program()
    for rule in plan.rules:
        dims = with_slots(rule.dims, checked.sizes.redundant)
        dims += [name for name in map(stg.begun, dims) if name in lowering.made_dims]
        block.add_op(_at(dist.RuleOp(dims, rule.axes, rule.copies, rule.uneven), rule.span))
    for context in plan.contexts:
        axes = plan.products.get(context.axis, (context.axis,))
        op = dist.ContextOp(context.method, axes, context.rotate, context.balance)
        block.add_op(_at(op, context.span) if context.span else op)
    spread_dims = checked.batch.spread_dims if checked.batch is not None else {}
    for name, size in (spread_dims | lowering.made_dims).items():
        op = stg.DimOp(name, size)
        op.location = program.location
        block.add_op(op)
    for op in copied_experts(checked, program, block, copied_axes):
        block.add_op(op)
    if sums is not None:
        for op in sequences_ops(checked, sums):
            block.add_op(op)
    block.add_op(program)
    if wrong := transposed_experts(module):
        raise CompileError(wrong)
    if plan.gradients.inputs and plan.frozen:
        check_lookups(module, plan)
    return module


def check_lookups(module: ModuleOp, plan: Plan) -> None:
    """E0401 where what is looked up is to have a gradient, and all tables are trained, so that it has one."""
    tables = (op.table for op in module.walk() if isinstance(op, stg.EmbeddingOp))
    stored = (followed(table, through(stg.CastOp)).owner for table in tables)
    if not any(not isinstance(op, stg.WeightOp) or op.frozen is not None for op in stored):
        message = "`inputs` of `gradients` is about tables that are frozen, and none is looked up"
        help_ = "leave it out, or freeze the table"
        raise refused("E0401", message, plan.gradients.given.get("inputs"), help=help_)


def with_slots(dims: Sequence[str], redundant: Collection[str]) -> list[str]:
    """The dims of a rule: what splits experts that have copies splits the slots of both, and leaves routers whole."""
    return [slots(name) if name in redundant else name for name in dims]


def copied_experts(
    checked: CheckedModel, program: Operation, block: Block, axes: Mapping[str, symbolic.Size]
) -> Iterator[Operation]:
    """The dims of experts and their copies, whose tokens are those of as many."""
    if not checked.sizes.redundant or checked.batch is None:
        return
    assert isinstance(program, stg.ProgramOp)
    span = checked.batch.serve.span
    assert span is not None
    tokens = {op.dim.data: op for op in block.ops if isinstance(op, stg.DimOp)}
    for experts, each in add_copies(program).items():
        size = symbolic.symbol(experts) + checked.sizes.redundant[experts]
        name = own = slots(experts)
        if (multiple := checked.sizes.multiples.get(experts)) is not None:
            own, multiple = unpadded(name), multiple.substitute(axes)
            padded = multiple * symbolic.ceildiv(symbolic.symbol(own), multiple)
            yield _at(stg.DimOp(own, size), span)
            yield _at(stg.DimOp(name, padded, pads=own, slots=experts), span)
        else:
            yield _at(stg.DimOp(name, size, slots=experts), span)
        exact = tokens[checked.sizes.unpadded.get(each, each)]
        exact.size = SizeAttr(exact.size.data.substitute({experts: symbolic.symbol(own)}))


def plan_of_model(checked: CheckedModel, module: ModuleOp) -> dist.PlanOp:
    """What passes depend on besides the program. A schedule without backward passes evaluates the loss alone."""
    (program,) = (op for op in module.body.ops if isinstance(op, stg.ProgramOp))
    output = program.body.block.last_op
    assert isinstance(output, stg.OutputOp)
    is_loss = len(output.values) == 1 and not tensor_of(output.values[0].type).dims
    pipeline = checked.plan.pipeline
    evaluates = pipeline is not None and pipeline.schedule == FORWARD_ONLY
    batch = checked.batch
    new = None if batch is None or batch.is_imagined else batch.roles.new
    return plan_op(checked.plan, checked.batch_dim, new, is_loss and not evaluates)


def sequences_ops(checked: CheckedModel, sums: BatchSums) -> Iterator[Operation]:
    """What devices or iterations differ in, and the sizes that ops have asked for."""
    assert checked.batch is not None
    span = checked.batch.serve.span
    assert span is not None
    known = conditions.unread(checked.sizes.known)
    for name, size in sums.derived.items():
        if name not in checked.sizes.dim_names:
            yield _at(stg.DimOp(name, size), span)
    for name in sums.named:
        if name not in checked.sizes.dims:
            number = symbolic.constant(sums.first(name, known))
            yield _at(stg.DimOp(name, number), span)
    said = sums.axes, sums.named, sums.sequences, sums.microbatches, sums.split, sums.are_joined
    yield _at(dist.SequencesOp(*said), span)


def placed_alike(placed: SSAValue, value: SSAValue) -> list[stg.PlaceOp]:
    """Ops that place a value as the overrides of another one do."""
    found: list[stg.PlaceOp] = []
    for said in placing_chain(placed):
        place = stg.PlaceOp(value, said.dims.data, said.axes.data)
        stg.marks(place).take(stg.marks(said))
        place.location = said.location
        place.result.name_hint = said.result.name_hint
        found.append(place)
        value = place.result
    return found


def _at(op: Operation, span: Span) -> Operation:
    op.location = location_of(span)
    return op


class _Lowering:
    def __init__(self, checked: CheckedModel) -> None:
        self.checked = checked
        self.batch = checked.batch
        self.stored: list[Operation] = []
        """Weights and caches, which are the program's."""
        self.blocks: list[Block] = []
        """The block of the program, then those of the repeats that are being filled."""
        self.counts: list[Size] = []
        """The counts of those repeats."""
        self.named: set[SSAValue] = set()
        """Values that have a name in the text."""
        self.read: dict[SSAValue, None] = {}
        """Weights that are converted for their readers."""
        self.made_dims: dict[str, Size] = {}
        """Dims that the text has not."""
        self.kept: list[stg.CacheOp] = []
        """The caches of what is computed once."""
        steps = [step for body in checked.bodies.values() for step in body.walk()]
        self.kept_once = {step.cache for step in steps if isinstance(step, OnceStep)}
        self.slices: list[list[tuple[SSAValue, SSAValue]]] = []
        """Of those repeats: each stack, and the block argument that is one of it."""

    def program(self) -> Operation:
        body = self.checked.body
        types = [parameter.value.type for parameter in body.parameters]
        block = Block(arg_types=types)
        self.blocks.append(block)
        scope = Scope(self.checked.name)
        results = self.body(body, list(block.args), scope)
        place = body.results[0].span if body.results else body.span
        dropped: set[Operation] = set()
        if self.batch is not None:
            served = served_results(results, self.batch)
            results, dropped = served.values, served.dropped
        output = stg.OutputOp(results)
        self.add(output, place, scope)
        first = block.first_op
        assert first is not None
        block.insert_ops_before(self.stored, first)
        self.convert_where_read(block)
        program = stg.ProgramOp(self.checked.name, Region(block))
        if self.batch is not None:
            drop_unread(program, dropped)
            if self.batch.is_packed:
                self.made_dims |= split_sources(program, self.kept, self.batch)
                check_packed(program, self.batch)
                self.made_dims |= split_pairs(program, self.batch)
            if self.batch.serve.experts == "padded":
                pad_experts(program)
            if not self.batch.is_imagined:
                check_states(program, self.batch)
        return _at(program, body.span)

    def convert_where_read(self, block: Block) -> None:
        """Move what converts a weight, and what places it then, before what reads it first, as under `torch.autocast`. A weight that nobody reads so
        is not converted.
        """
        order = {op: number for number, op in enumerate(block.walk())}
        for value in self.read:
            cast = value.owner
            assert isinstance(cast, stg.CastOp)
            moved: list[Operation] = [cast]
            while isinstance(place := value.get_user_of_unique_use(), stg.PlaceOp):
                moved.append(place)
                value = place.result
            if not value.uses:
                if not any(isinstance(use.operation, stg.PlaceOp) for use in cast.x.uses):
                    Rewriter.insert_op(placed_alike(value, cast.x), InsertPoint.after(moved[-1]))
                for op in reversed(moved):
                    Rewriter.erase_op(op)
                continue
            first = min((use.operation for use in value.uses), key=lambda op: order[op])
            while first.parent_block() is not cast.parent_block():
                first = first.parent_op()
                assert first is not None
            for op in moved:
                op.detach()
                Rewriter.insert_op(op, InsertPoint.before(first))

    def add(self, op: Operation, span: Span, scope: Scope) -> None:
        """Append an op where we are, with its place in the text and the call it comes from."""
        op.location = location_of(span)
        if scope.instances:
            stg.marks(op)["scope"] = StringAttr(scope.text)
        self.blocks[-1].add_op(op)

    def body(
        self, body: CheckedBody, arguments: Sequence[SSAValue], scope: Scope
    ) -> list[SSAValue]:
        """Write out a body; its results."""
        values: Values = {}
        for parameter, argument in zip(body.parameters, arguments, strict=True):
            values[parameter.value] = argument
            self.name(parameter, values, scope)
        for step in body.steps:
            self.step(step, values, scope)
        return [values[result] for result in body.results]

    def step(self, step: Step, values: Values, scope: Scope) -> None:
        if isinstance(step, OpStep):
            operands = [values[operand] for operand in step.operands]
            if isinstance(step, PartsStep) and self.has_in_front(step):
                made = self.joined if step.joins else self.cut
                values.update(zip(step.results, made(step, operands, scope), strict=True))
                return
            if isinstance(step, StateStep) and self.batch is not None:
                op = step.resume(operands, values[step.cache], self.batch)
            else:
                op = step.build(operands)
            if isinstance(op, stg.CrossEntropyOp):
                self.place_converted(op, step.span)
            if isinstance(op, stg.FusedAttention):
                op = self.see_positions(op, step.span, scope)
            if isinstance(op, stg.EmbeddingOp) and self.checked.plan.gradients.inputs:
                stg.marks(op)["has_gradient"] = UnitAttr()
            if isinstance(op, stg.EmbeddingOp | stg.EmbeddingBagOp) and self.is_wide(op.table):
                op = self.looked_up(op, step, scope)
            self.add(op, step.span, scope)
            if isinstance(step, ReadStep):
                self.read[op.results[0]] = None
            for value, result in zip(step.results, op.results, strict=False):
                made = tensor_of(result.type)
                assert made.names == value.type.names, f"{op.name} makes {made}, not {value.type}"
                values[value] = result
        elif isinstance(step, NameStep):
            self.name(step, values, scope)
        elif isinstance(step, WeightStep | CacheStep):
            if isinstance(step, WeightStep) or self.batch is not None:
                values[step.result] = self.declared(step, scope)
        elif isinstance(step, AppendStep):
            values[step.result] = self.read_state(self.append(step, values, scope), step, scope)
        elif isinstance(step, OnceStep):
            values[step.result] = self.read_state(self.once(step, values, scope), step, scope)
        elif isinstance(step, CallStep):
            callee = self.checked.bodies[step.module]
            arguments = [values[operand] for operand in step.operands]
            results = self.body(callee, arguments, scope.enter(step))
            values.update(zip(step.results, results, strict=True))
        else:
            self.repeat(step, values, scope)

    def is_wide(self, table: SSAValue) -> bool:
        """Whether a table is converted to a narrower dtype for its readers. One that is stored in few bits is converted as a whole."""
        read = unplaced(table)
        if read not in self.read:
            return False
        assert isinstance(read.owner, stg.CastOp)
        stored = tensor_of(read.owner.x.type)
        return FLOATS.index(stored.dtype) > FLOATS.index(tensor_of(read.type).dtype)

    def place_converted(self, loss: stg.CrossEntropyOp, span: Span) -> None:
        """Logits that are converted for their loss alone are placed as the plan places the logits: no name of the text means what is converted."""
        cast = loss.operands[0].owner
        if isinstance(cast, stg.CastOp) and cast.location == location_of(span):
            places = placed_alike(cast.x, cast.result)
            self.blocks[-1].add_ops(places)
            if places:
                loss.operands[0] = places[-1].result

    def looked_up(
        self, op: stg.EmbeddingOp | stg.EmbeddingBagOp, step: OpStep, scope: Scope
    ) -> Operation:
        """Rows of a table as it is stored, and placed; the op that converts them."""
        dtype = tensor_of(op.results[0].type).dtype
        cast = unplaced(op.table).owner
        assert isinstance(cast, stg.CastOp)
        places = placed_alike(op.table, cast.x)
        self.blocks[-1].add_ops(places)
        rows = step.build([op.ids, places[-1].result if places else cast.x])
        stg.marks(rows).take(stg.marks(op))
        op.erase()
        self.add(rows, step.span, scope)
        return stg.CastOp(rows.results[0], dtype)

    def name(self, step: NameStep, values: Values, scope: Scope) -> None:
        """Hint the name, and place the value where the plan overrides it."""
        value = values[step.value]
        if value.name_hint is None:
            value.name_hint = step.name
        self.note_names(value, step.name, scope)
        for override in self.checked.plan.overrides:
            if scope.matches(override.path, step.name):
                dims = override.dims
                if dims is None:
                    dims = step.result.type.names
                place = stg.PlaceOp(value, dims, override.axes)
                self.add(place, override.span, scope)
                place.result.name_hint = step.name
                self.named.add(value)
                value = place.result
        self.named.add(value)
        values[step.result] = value

    def note_names(self, value: SSAValue, name: str, scope: Scope) -> None:
        """Let the ops behind a value know what the plan calls it, as far back as other named values."""
        plan = self.checked.plan
        asked = dict.fromkeys(
            (*plan.recompute.what, *plan.offload.activations, *plan.precision.saved_values)
        )
        words = [word for word in asked if scope.means(word.split("."), name)]
        waiting = [value] if words else []
        while waiting:
            op = waiting.pop().owner
            if isinstance(op, stg.TensorOp):
                stg.add_names(op, words)
                waiting += [x for x in op.operands if x not in self.named]

    def see_positions(self, op: stg.FusedAttention, span: Span, scope: Scope) -> stg.TensorOp:
        """Attention to what a cache holds: pairs of each sequence; without a cache a sequence attends to itself. What makes its result: what devices
        make of their parts of the keys is combined."""
        plan = self.checked.plan
        if self.batch is not None:
            share = share_of_queries(op, plan, self.checked.sizes.known, self.batch, span)
            spread = spread_keys(op, plan, self.batch, span)
            count_pairs(op, self.batch, spread, share)
            if spread is None:
                return op
            if isinstance(op, stg.LatentAttentionOp):
                self.join_queries(op, spread, span, scope)
            self.add(op, span, scope)
            outputs, lse = op.results
            return stg.CombineAttentionOp(outputs, lse, spread.axes, spread.by)
        roles = self.checked.roles
        if roles is None or op.key_dim not in roles.positions or has_bias(op):
            return op
        positions = op.key_dim
        for operand in op.KEY_OPERANDS:
            own = stg.RenameOp(op.operands[operand], [positions], [roles.new])
            self.add(own, span, scope)
            op.operands[operand] = own.result
        return op

    def join_queries(
        self, op: stg.LatentAttentionOp, spread: Spread, span: Span, scope: Scope
    ) -> None:
        """Gather both parts of queries for the heads of other devices at once (`decode_q` of vLLM's `MLACommonImpl`)."""
        heads, rules = tensor_of(op.near.type).names[-2], rules_of(self.checked.plan)
        split = split_dims(tensor_of(op.near.type).names, rules).get(heads, ())
        kept = [axis for axis in split if axis not in spread.axes]
        if len(kept) == len(split):
            return
        widths = [tensor_of(each.type).names[-1] for each in (op.near, op.far)]
        joined = ".".join(widths)
        self.made_dims[joined] = symbolic.total(map(symbolic.symbol, widths))
        both = stg.ConcatOp([op.near, op.far], widths, joined)
        whole = stg.PlaceOp(both.result, [heads], kept)
        apart = stg.SplitOp(whole.result, joined, widths)
        placed = [stg.PlaceOp(part, [heads], kept) for part in apart.parts]
        for each in (both, whole, apart, *placed):
            self.add(each, span, scope)
        for position, each in enumerate(placed):
            op.operands[position] = each.result

    def append(self, step: AppendStep, values: Values, scope: Scope) -> SSAValue:
        """The cache with what is new; where nothing is cached, what is new."""
        new = values[step.new]
        if self.batch is None:
            op = stg.RenameOp(new, [step.new_dim], [step.position_dim])
        else:
            op = stg.AppendOp(values[step.cache], new, step.new_dim, step.position_dim)
            spread = spread_of(op.result, step.position_dim, self.checked.plan, self.batch)
            if spread is not None:
                own = self.batch.in_a_row(spread.of_new)
                op.properties["own"] = SizeAttr(own)
        self.add(op, step.span, scope)
        return op.results[0]

    def read_state(self, value: SSAValue, step: AppendStep | OnceStep, scope: Scope) -> SSAValue:
        """What a cache holds that is kept in a wider dtype than activations have, in theirs; attention reads a narrower one as it is."""
        wanted = step.result.type.dtype
        if FLOATS.index(tensor_of(value.type).dtype) <= FLOATS.index(wanted):
            return value
        op = stg.CastOp(value, wanted)
        self.add(op, step.span, scope)
        return op.result

    def once(self, step: OnceStep, values: Values, scope: Scope) -> SSAValue:
        """What is computed where all sequences begin; where none does, the cache, which no iteration writes again."""
        if self.batch is None:
            return values[step.new]
        if not self.begins(step.span):
            return values[step.cache]
        op = stg.FillOp(values[step.cache], values[step.new])
        self.add(op, step.span, scope)
        return op.result

    def has_in_front(self, step: PartsStep) -> bool:
        """Whether all parts but the last are of sequences that begin alone, and these are not all there is, each a row."""
        batch = self.batch
        if batch is None or batch.is_imagined or step.whole != batch.roles.new:
            return False
        return batch.is_packed or not self.begins(step.span)

    def joined(
        self, step: PartsStep, operands: Sequence[SSAValue], scope: Scope
    ) -> Sequence[SSAValue]:
        """What stands in front of text, and this, in rows; where no sequence begins, text is all that is new."""
        assert self.batch is not None
        *in_front, text = operands
        if not self.begins(step.span):
            op = stg.RenameOp(text, [step.parts[-1]], [step.whole])
            self.add(op, step.span, scope)
            return op.results
        rows: list[SSAValue] = []
        for name, operand in zip(step.in_front, in_front, strict=True):
            if tensor_of(operand.type).names[:2] != (self.batch.roles.batch, name):
                message = f"what stands in front of sequences of several lengths begins with `{self.batch.roles.batch}, {name}`"
                raise refused("E0415", message, step.span, help="join it in that shape")
            row = stg.InRowsOp(operand)
            self.add(row, step.span, scope)
            rows.append(row.result)
        parts = (*map(stg.begun, step.in_front), step.parts[-1])
        op = stg.ConcatOp([*rows, text], parts, step.whole)
        self.add(op, step.span, scope)
        return op.results

    def cut(
        self, step: PartsStep, operands: Sequence[SSAValue], scope: Scope
    ) -> Sequence[SSAValue]:
        """The same backwards. Where no sequence begins, what is made of other parts is read by none."""
        (x,) = operands
        if not self.begins(step.span):
            unread = step.build(operands)
            op = stg.RenameOp(x, [step.whole], [step.parts[-1]])
            for each in (unread, op):
                self.add(each, step.span, scope)
            return [*unread.results[:-1], op.result]
        op = stg.SplitOp(x, step.whole, (*map(stg.begun, step.in_front), step.parts[-1]))
        self.add(op, step.span, scope)
        *in_front, text = op.results
        found: list[SSAValue] = []
        for each in in_front:
            apart = stg.OutOfRowsOp(each)
            self.add(apart, step.span, scope)
            found.append(apart.result)
        return [*found, text]

    def begins(self, span: Span) -> bool:
        """Whether there are sequences that begin, of which something is computed once. E0420 where that is not the same everywhere."""
        assert self.batch is not None
        begins = self.batch.begins
        if any(any(each) != any(begins[0]) for each in begins):
            raise OtherPrograms(np.array([any(each) == any(begins[0]) for each in begins]))
        if not any(begins[0]):
            return False
        if not all(map(all, begins)):
            sums = self.batch.sums
            at, one, several = "on", "device", "devices"
            if sums is not None and sums.microbatches > 1:
                at, one, several = "in", "microbatch", "microbatches"
            message = f"sequences begin {at} some {several}, and {at} others none do: what is computed once is for those that begin alone"
            help_ = f"serve one that begins {at} each {one}, or {at} none"
            raise refused("E0420", message, span, help=help_)
        if not self.batch.is_packed and not self.batch.all_begin:
            message = "sequences are rows, of which some begin and some go on: what is computed once is for those that begin alone"
            help_ = "serve them in iterations of their own"
            raise refused("E0420", message, span, help=help_)
        return True

    def declared(self, step: WeightStep | CacheStep, scope: Scope) -> SSAValue:
        """A weight or a cache of the program; inside repeats, one of its stack."""
        stacked: TensorType | StackType = step.result.type
        if isinstance(step, CacheStep):
            assert self.batch is not None
            positions = self.batch.roles.positions
            stacked = stacked.with_names({name: stg.stored(name) for name in positions})
            if step.result.is_state:
                first, *others = stacked.dims
                stacked = TensorType.of([first, stg.SEQUENCES, *others], stacked.dtype)
        for count in reversed(self.counts):
            stacked = StackType.of(count, stacked)
        path = scope.path(step.name)
        if isinstance(step, WeightStep):
            patterns = [name.split(".") for name in self.checked.plan.frozen]
            frozen = any(is_named(pattern, scope, step.name) for pattern in patterns)
            op: Operation = stg.WeightOp(path, step.num_rows, frozen, step.is_own, like=stacked)
        else:
            op = stg.CacheOp(path, like=stacked)
            if step.result in self.kept_once:
                self.kept.append(op)
        op.location = location_of(step.span)
        if scope.instances:
            stg.marks(op)["scope"] = StringAttr(scope.text)
        value: SSAValue = op.results[0]
        value.name_hint = step.name
        self.stored.append(op)
        for slices, block in zip(self.slices, self.blocks[1:], strict=True):
            argument = stg.slice_arg(block, value)
            argument.name_hint = step.name
            slices.append((value, argument))
            value = argument
        return value

    def repeat(self, step: RepeatStep, values: Values, scope: Scope) -> None:
        block = Block(arg_types=[carried.inner.type for carried in step.carried])
        for carried, argument in zip(step.carried, block.args, strict=True):
            values[carried.inner] = argument
            argument.name_hint = carried.inner.name
        self.blocks.append(block)
        self.counts.append(step.count)
        self.slices.append([])
        for inner in step.steps:
            self.step(inner, values, scope)
        self.add(stg.YieldOp([values[carried.next] for carried in step.carried]), step.span, scope)
        self.blocks.pop()
        self.counts.pop()
        stacks = [stack for stack, _ in self.slices.pop()]
        before = [values[carried.before] for carried in step.carried]
        op = stg.RepeatOp(step.count, before, stacks, block)
        self.add(op, step.span, scope)
        for carried, result in zip(step.carried, op.results, strict=True):
            result.name_hint = carried.after.name
            values[carried.after] = result
