"""Sum each weight's gradient over the ranks that hold terms of it.

Before `reduce-gradients{axes="dp"}`:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, tp]>>
      stg.output weights %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>
        gradients %g : !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, tp]>>
    }

After:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, tp]>>
      %r = stg.repeat "L" reverse slice(%s = %g : !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp, tp]>>)
          -> (!stg.stack<"L" x !stg.tensor<[D], fp32>>) attributes {phase = "grad_reduce", made_by = "reduce-gradients"} {
        %a = dist.reshard %s {scope = "w", phase = "grad_reduce", made_by = "reduce-gradients"}
          : !stg.tensor<[D], fp32, partial [dp, tp]> -> !stg.tensor<[D], fp32, partial [dp]>
        %b = dist.all_reduce_gradient (%a) over [dp] in "fp32" {scope = "w", phase = "grad_reduce", made_by = "reduce-gradients"}
          : (!stg.tensor<[D], fp32, partial [dp]>) -> !stg.tensor<[D], fp32>
        stg.yield %b : !stg.tensor<[D], fp32>
      }
      stg.output weights %w : !stg.stack<"L" x !stg.tensor<[D], bf16>> gradients %r : !stg.stack<"L" x !stg.tensor<[D], fp32>>
    }

First over the axes that are not data parallel (`tp` for norms under sequence parallelism), then over `axes`: over those that
storage is split over (`shard_axes`, ZeRO) by a reduce-scatter, over the others by an all-reduce of what is left. With
`join` the gradients of a layer travel together, as FSDP2's units do: copied into one buffer (`copied`). Gradients are taken in the order in which the backward
pass makes them; stacks are reduced layer by layer, the last layer first.

With `buffers` gradients lie in buffers, as those of Megatron-LM's distributed optimizer: in the reverse of the order in which it registers parameters
(`registered.py`). They are reduced over the data-parallel axes first. When that is over, all that are partial over the same other axes are summed as one, and
then those that stages share: in whole buffers (`of_whole`), of which a rank has its shards (`finalize_model_grads` in `distributed/finalize_model_grads.py`).
With `experts_apart` a stack of experts is taken apart, and reduced expert by expert (`weight0`, `weight1`, ... of Transformer Engine's `GroupedLinear`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from stagec.analysis.dependence import Dependence
from stagec.analysis.recompute_choice import call_of
from stagec.analysis.units import (
    ROOT,
    first_use,
    is_within,
    names_weight,
    takes_gradient,
    unit_of,
)
from stagec.dialects import dist, stg
from stagec.dialects.op import first_op
from stagec.dialects.types import (
    Layers,
    ShardType,
    StackType,
    ValueType,
    leaf_of,
    tensor_of,
    with_dtype,
)
from stagec.dialects.use_def import followed, through, weight_path
from stagec.passes.optimizer.reduce_gradients.ready_order import ReadyOrder, loop_of
from stagec.passes.optimizer.reduce_gradients.registered import registration
from stagec.rewriting import inherit, output_of, programs, set_type
from stagec.rewriting.stored_weights import layers_that_read, stored_rows
from stagec.symbolic import ONE

NAME = "reduce-gradients"
DATA = "data"
"""Stands before a unit that needs no gradient of what goes into it."""


@dataclass(frozen=True)
class ReduceGradients(ModulePass):
    name = NAME

    axes: tuple[str, ...] = ()
    """The data-parallel axes, reduced last."""
    shard_axes: tuple[str, ...] = ()
    """Those of them that storage is split over."""
    dtype: str = "fp32"
    """What the sums over the data-parallel axes travel in."""
    join: bool = False
    """Whether the gradients of a unit travel as one buffer."""
    units: tuple[str, ...] = ()
    """Modules whose parameters are a unit, all others one more; none: a layer is one, the rest another."""
    one_unit: bool = False
    """Everything is one unit."""
    every_microbatch: bool = False
    """Reduce after each microbatch, not once per step."""

    own: str = stg.OWN_DTYPE
    """What those of weights travel in that have a dtype of their own: `own`, what is `wider`, or what `others` do."""
    stored: str = ""
    """The dtype of what a rank keeps of a gradient whose storage is split. Empty: that of the sum."""
    own_stored: str = stg.OWN_DTYPE
    """And of those weights."""
    flat: bool = False
    """Storage is split by elements of a parameter, not by its rows."""
    overlap: bool = True
    """Reduce during the backward pass, as gradients become ready; else after it."""
    late: tuple[str, ...] = ()
    """Weights and modules whose gradients are reduced after the backward pass all the same."""
    of_stage: bool = False
    """Reduce unit by unit where the schedule of a pipeline says: when a stage has done its last backward pass."""
    buffers: bool = False
    """Gradients lie in buffers as Megatron-LM's do: how they are ordered, and what is summed over other axes and stages last."""
    experts_apart: bool = False
    """In buffers each expert of a rank is a parameter by itself, the last one first."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for program in programs(op):
            Reducer(self, program).run()


@dataclass
class Reducer:
    options: ReduceGradients
    program: stg.ProgramOp

    def run(self) -> None:
        block = self.program.body.block
        weights = [op for op in block.ops if isinstance(op, stg.WeightOp)]
        options = self.options
        self.weights = {w.path.data: w.weight for w in weights}
        self.rows = {w.path.data: stored_rows(w, options.flat) for w in weights}
        self.dtypes = {w.path.data: w.gradient_dtype(options.dtype, options.own) for w in weights}
        self.stored = {
            w.path.data: w.gradient_dtype(options.stored, options.own_stored)
            for w in weights
            if options.stored
        }
        self.makers = ReadyOrder()
        self.ready: dict[SSAValue, list[int]] = {}
        self.merged: Mapping[str, str] = {}
        self.experts: frozenset[str] = frozenset()
        output = output_of(self.program)
        loop = first_op(block, stg.AccumulateOp)
        paths = {g: weight_path(w) for w, g in zip(output.weights, output.gradients, strict=True)}
        if self.options.every_microbatch and loop is not None:
            self.reduce_inside(loop, {own_part(g): path for g, path in paths.items()})
            return
        if self.options.buffers:
            self.reduce_in_buffers(output)
            return
        reduced = self.reduce_all(list(output.gradients), paths, output)
        finished = stg.OutputOp(
            output.values, output.weights, [reduced.get(g, g) for g in output.gradients]
        )
        inherit(finished, output)
        Rewriter.replace_op(output, finished)

    def reduce_in_buffers(self, output: stg.OutputOp) -> None:
        """Over the data-parallel axes, in buffers; then over others, all as one; then those that stages share."""
        own = {gradient: before_stages(gradient) for gradient in output.gradients}
        pairs = zip(output.weights, output.gradients, strict=True)
        paths = {own[gradient]: weight_path(weight) for weight, gradient in pairs}
        registered = registration(self.program)
        self.merged = registered.merged
        if self.options.experts_apart:
            sent = (op for op in self.program.walk() if isinstance(op, stg.DispatchOp))
            self.experts = frozenset(op.over.data for op in sent)
        self.makers.move({path: g for g, path in paths.items()}, registered.later)
        reduced = self.reduce_all(list(paths), paths, output)
        total = {gradient: reduced.get(mine, mine) for gradient, mine in own.items()}
        self.sum_what_is_left(total, output)
        for gradient, mine in own.items():
            if mine is not gradient:
                tied = gradient.owner
                assert isinstance(tied, dist.AllReduceTiedOp)
                again = dist.AllReduceTiedOp([total[gradient]], tied.weight, tied.axes, tied.dtype)
                total[gradient] = self.in_whole_buffers(again, output)
                stg.marks(again)["scope"] = tied.weight
        finished = stg.OutputOp(output.values, output.weights, [*total.values()])
        inherit(finished, output)
        ties = [gradient.owner for gradient, mine in own.items() if mine is not gradient]
        Rewriter.replace_op(output, finished)
        for tied in ties:
            assert isinstance(tied, Operation)
            Rewriter.erase_op(tied)

    def sum_what_is_left(self, total: dict[SSAValue, SSAValue], output: stg.OutputOp) -> None:
        """All that are partial over the same axes as one."""
        left: dict[tuple[tuple[str, ...], bool, str], list[SSAValue]] = {}
        for gradient, value in total.items():
            tensor = tensor_of(value.type)
            if tensor.partial:
                is_shard = isinstance(leaf_of(value.type), ShardType)
                left.setdefault((tensor.partial, is_shard, tensor.dtype), []).append(gradient)
        for (axes, is_shard, dtype), gradients in left.items():
            values = [total[gradient] for gradient in gradients]
            make = dist.AllReduceShardOp if is_shard else dist.AllReduceGradientOp
            step = make(values, axes, dtype)
            self.in_whole_buffers(step, output)
            total.update(zip(gradients, step.outputs, strict=True))

    def in_whole_buffers(self, op: dist.StorageOp, output: stg.OutputOp) -> SSAValue:
        """Insert an op that sums in whole buffers when the data-parallel reductions are over."""
        self.mark(op, output)
        stg.marks(op)["of_whole"] = UnitAttr()
        stg.marks(op)["late"] = UnitAttr()
        Rewriter.insert_op(op, InsertPoint.before(output))
        return op.outputs[0]

    def reduce_inside(self, loop: stg.AccumulateOp, paths: Mapping[SSAValue, str]) -> None:
        """Reduce what each microbatch yields; what adds up is reduced already."""
        yield_op = loop.yield_op
        # A rank keeps its shards in the dtype of the sums.
        self.stored = {paths[x]: tensor_of(x.type).dtype for x in loop.sums if x in paths}
        inner = {
            value: paths[total]
            for value, total in zip(yield_op.values, loop.sums, strict=True)
            if total in paths
        }
        given = {
            yield_op.values[op.gradient.index]: op.weight.data
            for op in self.program.body.block.ops
            if isinstance(op, dist.GiveGradientOp) and isinstance(op.gradient, OpResult)
        }
        inner |= given
        for path in given.values():
            self.stored.setdefault(path, next(iter(self.stored.values()), ""))
        reduced = self.reduce_all(list(inner), inner, yield_op)
        values = [reduced.get(v, v) for v in yield_op.values]
        sums = []
        for value, total in zip(values, loop.sums, strict=True):
            assert isinstance(value.type, ValueType)
            sums.append(with_dtype(value.type, tensor_of(total.type).dtype))
        finished = stg.YieldOp(values)
        finished.location = yield_op.location
        Rewriter.replace_op(yield_op, finished)
        grown = stg.AccumulateOp(loop.axis.data, loop.detach_region(loop.body), sums)
        inherit(grown, loop)
        Rewriter.replace_op(loop, grown, grown.results)
        for op in self.program.body.block.ops:
            if isinstance(op, dist.TakeGradientOp):
                set_type(op.total, op.gradient.type)
            elif isinstance(op, dist.AllReduceTiedOp):
                set_type(op.outputs[0], op.values[0].type)

    def reduce_all(
        self, gradients: Sequence[SSAValue], paths: Mapping[SSAValue, str], before: Operation
    ) -> dict[SSAValue, SSAValue]:
        """Insert the reductions of all gradients; what each becomes."""
        partial = [g for g in gradients if tensor_of(g.type).partial]
        partial.sort(key=self.makers.of)
        reduced: dict[SSAValue, SSAValue] = {}

        def insert(op: Operation) -> None:
            self.mark(op, before)
            Rewriter.insert_op(op, InsertPoint.before(before))

        if self.options.one_unit:
            return self.reduce_as_one(partial, paths, insert)
        root = self.root_with_layers(partial, paths)
        for together in self.in_order(partial, paths, root):
            if together == root:
                reduced |= self.reduce_as_one(root, paths, insert)
            elif isinstance(together[0].type, StackType):
                repeat = self.over_layers(together, paths, before)
                insert(repeat)
                reduced |= dict(zip(together, repeat.results, strict=True))
            else:
                reduced |= self.reductions(together, paths, insert)
        return reduced

    def root_with_layers(
        self, gradients: Sequence[SSAValue], paths: Mapping[SSAValue, str]
    ) -> list[SSAValue]:
        """The gradients of the root unit, if it holds what layers have outside of named units: it is reduced as one buffer."""
        if not self.options.join or not self.options.units:
            return []
        root = [g for g in gradients if unit_of(paths[g], self.options.units) == ROOT]
        return root if any(isinstance(g.type, StackType) for g in root) else []

    def in_order(
        self,
        gradients: Sequence[SSAValue],
        paths: Mapping[SSAValue, str],
        root: Sequence[SSAValue] = (),
    ) -> list[list[SSAValue]]:
        """Gradients in the order in which they are reduced: those of one loop over layers, or of one unit, together, and those of `root`."""
        groups: dict[tuple[object, object], list[SSAValue]] = {}
        of_data = self.of_data(gradients, paths) if self.options.join else {}
        for gradient in gradients:
            if gradient in root:
                key = (None, ROOT)
            elif gradient in of_data:
                key = (DATA, of_data[gradient])
            elif isinstance(gradient.type, StackType):
                key = (gradient.type.layers, loop_of(gradient))
            elif self.options.join:
                key = (None, unit_of(paths[gradient], self.options.units))
            else:
                key = (None, self.merged.get(paths[gradient], gradient))
            groups.setdefault(key, []).append(gradient)
        if self.options.join and not self.options.overlap:
            # All is ready; the root unit goes first, then the others in the order of the forward pass (`perform_reduce_grad` in
            # `torch/distributed/pipelining/stage.py`).
            return sorted(groups.values(), key=lambda group: self.first_use(group, paths))
        # Others go as soon as all of a unit is ready. The root unit, and units that need no gradient of what goes into them, have no hook
        # that says so: FSDP2 reduces them in its final callback, the root first (`_root_post_backward_final_callback`).
        last = [groups.pop(key) for key in list(groups) if key == (None, ROOT) or key[0] == DATA]
        last.sort(key=lambda group: self.first_use(group, paths))
        return [*sorted(groups.values(), key=self.makers.of_group), *last]

    def first_use(self, group: Sequence[SSAValue], paths: Mapping[SSAValue, str]) -> int:
        """Where the forward pass begins to use what gradients are of; before all else if something is of the root unit."""
        return min(self.first_use_of(paths[gradient]) for gradient in group)

    def first_use_of(self, path: str) -> int:
        """When the unit of a weight is first used: the unit itself if it stands beside the layers, else the layers that it belongs to."""
        weight = self.weights[path]
        has_layers = isinstance(weight.type, StackType) and not self.options.units
        if not has_layers and unit_of(path, self.options.units) == ROOT:
            return -1
        return first_use(weight)

    def of_data(
        self, gradients: Sequence[SSAValue], paths: Mapping[SSAValue, str]
    ) -> dict[SSAValue, str | stg.RepeatOp]:
        """Gradients of units into which nothing goes that trained weights are behind, and their unit: an embedding's, and that of a layer behind what is
        frozen.
        """
        alone = {g: unit for g in gradients if (unit := self.unit_alone(g, paths[g])) is not None}
        if not alone:
            return {}
        dependence = Dependence(self.program)
        units = set(alone.values())
        given = {unit for unit in units if takes_gradient(self.program, unit, dependence)}
        return {gradient: unit for gradient, unit in alone.items() if unit not in given}

    def unit_alone(self, gradient: SSAValue, path: str) -> str | stg.RepeatOp | None:
        """The unit of a gradient where it is one: a call of a module, or the only layer of a repeat. Nothing for the root unit, nor for several layers."""
        is_stack = isinstance(gradient.type, StackType)
        if isinstance(gradient.type, StackType) and gradient.type.count != ONE:
            return None
        unit = unit_of(path, self.options.units)
        if unit == ROOT and is_stack and not self.options.units:
            return layers_that_read(self.weights[path])
        return None if unit == ROOT else unit

    def reduce_as_one(
        self,
        gradients: Sequence[SSAValue],
        paths: Mapping[SSAValue, str],
        insert: Callable[[Operation], None],
    ) -> dict[SSAValue, SSAValue]:
        """All gradients as one buffer, stacks included; first each over the other axes."""
        current: dict[SSAValue, SSAValue] = {}
        groups: dict[tuple[tuple[str, ...], str], list[SSAValue]] = {}
        for gradient in gradients:
            partial = tensor_of(gradient.type).partial
            others = [a for a in partial if a not in self.options.axes]
            current[gradient] = gradient
            if others:
                current[gradient] = self.reduced_over(gradient, others, paths[gradient], insert)
            remaining = tuple(a for a in partial if a in self.options.axes)
            groups.setdefault((remaining, self.dtypes[paths[gradient]]), []).append(gradient)
        for (remaining, _), members in groups.items():
            named = [paths[g] for g in members]
            for step in self.data_steps([current[g] for g in members], remaining, named):
                insert(step)
                current |= dict(zip(members, step.outputs, strict=True))
        return current

    def reduced_over(
        self,
        gradient: SSAValue,
        axes: Sequence[str],
        path: str,
        insert: Callable[[Operation], None],
    ) -> SSAValue:
        """A gradient, or each layer's of a stack, reduced over axes that are not data parallel."""
        if not isinstance(gradient.type, StackType):
            source = stg.tensor_type(gradient)
            step = dist.ReshardOp(
                gradient, source.with_partial(a for a in source.partial if a not in axes)
            )
            serve(step, path)
            # With the buffer that they go into, which is made when all gradients are there.
            if not self.options.of_stage:
                stg.marks(step)["late"] = UnitAttr()
            insert(step)
            return step.result
        body = Block(arg_types=[gradient.type.element])
        whole = self.reduced_over(body.args[0], axes, path, body.add_op)
        body.add_op(stg.YieldOp([whole]))
        repeat = stg.RepeatOp.over([gradient], body)
        insert(repeat)
        for op in body.walk():
            self.mark(op, repeat)
        return repeat.results[0]

    @property
    def backwards(self) -> bool:
        """Whether layers are reduced from the last to the first."""
        return self.options.overlap or not self.options.join

    def over_layers(
        self,
        stacks: Sequence[SSAValue],
        paths: Mapping[SSAValue, str],
        origin: Operation,
    ) -> stg.RepeatOp:
        """One repeat over the layers, the last first, that reduces a slice of each stack."""
        body = Block()
        slices: list[SSAValue] = [stg.slice_arg(body, stack) for stack in stacks]
        inner_paths = {s: paths[stack] for s, stack in zip(slices, stacks, strict=True)}
        self.ready |= {s: self.order(stack) for s, stack in zip(slices, stacks, strict=True)}

        def insert(op: Operation) -> None:
            self.mark(op, origin)
            body.add_op(op)

        results: dict[SSAValue, SSAValue] = {}
        nested: dict[Layers, list[SSAValue]] = {}
        for value in slices:
            if isinstance(value.type, StackType):
                nested.setdefault(value.type.layers, []).append(value)
        for inner in nested.values():
            repeat = self.over_layers(inner, inner_paths, origin)
            insert(repeat)
            results |= dict(zip(inner, repeat.results, strict=True))
        plain = [s for s in slices if not isinstance(s.type, StackType)]
        results |= self.reductions(plain, inner_paths, insert)
        body.add_op(stg.YieldOp([results[s] for s in slices]))
        return stg.RepeatOp.over(stacks, body, reverse=self.backwards)

    def reductions(
        self,
        gradients: Sequence[SSAValue],
        paths: Mapping[SSAValue, str],
        insert_op: Callable[[Operation], None],
    ) -> dict[SSAValue, SSAValue]:
        """Reduce gradients over the other axes, then over the data-parallel ones, unit by unit as they are complete."""
        current: dict[SSAValue, SSAValue] = {}
        units: dict[tuple[str, tuple[str, ...], str], list[SSAValue]] = {}
        for gradient in gradients:
            current[gradient] = gradient
            source = stg.tensor_type(gradient)
            remaining = [a for a in source.partial if a in self.options.axes]
            key = paths[gradient]
            key = self.merged.get(key, key)
            if self.options.join:
                key = unit_of(key, self.options.units)
            units.setdefault((key, tuple(remaining), self.dtypes[paths[gradient]]), []).append(
                gradient
            )
        complete = sorted(units.items(), key=lambda item: max(map(self.order, item[1])))
        if not self.backwards:
            complete.sort(key=lambda item: self.module_place(item[0][0]))
        for position, ((key, remaining, _), members) in enumerate(complete):
            insert = marking_first(insert_op) if self.options.join and position else insert_op
            for gradient in members:
                source = stg.tensor_type(gradient)
                if source.partial != remaining and not self.options.buffers:
                    step = dist.ReshardOp(gradient, source.with_partial(remaining))
                    serve(step, paths[gradient])
                    insert(step)
                    current[gradient] = step.result
            named = [paths[g] for g in members]
            values = [current[g] for g in members]
            if remaining and all(map(self.is_of_experts, values)):
                current |= zip(
                    members, self.expert_by_expert(values, key, named, insert), strict=True
                )
                continue
            for step in self.data_steps(values, remaining, named):
                serve(step, key)
                insert(step)
                current |= zip(members, step.outputs, strict=True)
        return current

    def module_place(self, unit: str) -> tuple[int, int]:
        """The place of a unit in the order of the modules, in which a stage of a pipeline reduces. A module stands before those in it."""
        inside = [place for place, path in enumerate(self.weights) if is_within(path, unit)]
        return min(inside, default=-1), len(unit)

    def is_of_experts(self, gradient: SSAValue) -> bool:
        """Whether each part of it along the first dim is a parameter by itself."""
        dims = stg.tensor_type(gradient).dims
        return len(dims) > 1 and dims[0].name in self.experts

    def expert_by_expert(
        self,
        gradients: Sequence[SSAValue],
        path: str,
        paths: Sequence[str],
        insert: Callable[[Operation], None],
    ) -> list[SSAValue]:
        """Reduce each expert's part of the gradients, the last expert first."""
        apart = [dist.TakeApartOp(gradient) for gradient in gradients]
        for op in apart:
            insert(op)
        stacks = [op.result for op in apart]
        body = Block(arg_types=[stack_type(each).element for each in stacks])
        values: Sequence[SSAValue] = body.args
        partial = stg.tensor_type(values[0]).partial
        remaining = [a for a in partial if a in self.options.axes]
        for step in self.data_steps(values, remaining, paths, apart=1):
            serve(step, path)
            self.mark(step, apart[0])
            body.add_op(step)
            values = step.outputs
        body.add_op(stg.YieldOp(values))
        repeat = stg.RepeatOp.over(stacks, body, reverse=True)
        stg.marks(repeat)[stg.STEPS] = UnitAttr()
        insert(repeat)
        together: list[SSAValue] = []
        numbers = [self.rows[path] for path in paths]
        for gradient, parts, number in zip(gradients, repeat.results, numbers, strict=True):
            leaf = leaf_of(parts.type)
            whole = stg.tensor_type(gradient).with_partial(tensor_of(leaf).partial)
            is_shard = isinstance(leaf, ShardType)
            whole = whole.with_dtype(tensor_of(leaf).dtype)
            made = ShardType.of(whole, leaf.axes, number) if is_shard else whole
            op = dist.PutTogetherOp(parts, made)
            insert(op)
            together.append(op.result)
        return together

    def order(self, gradient: SSAValue) -> list[int]:
        """When a gradient is ready."""
        return self.ready.get(gradient) or self.makers.of(gradient)

    def data_steps(
        self,
        values: Sequence[SSAValue],
        partial: Sequence[str],
        paths: Sequence[str],
        apart: int = 0,
    ) -> Iterator[dist.StorageOp]:
        """Reduce-scatter over the axes that storage is split over, all-reduce over the rest; of `paths`, which travel in one dtype, or of their parts along
        `apart` dims."""
        scattered = [a for a in self.options.shard_axes if a in partial]
        reduced = [a for a in partial if a not in scattered]
        dtype = self.dtypes[paths[0]]
        if scattered:
            rows = [self.rows[path] - apart for path in paths]
            stored = self.stored.get(paths[0]) or None
            step = dist.ReduceShardOp(values, scattered, dtype, rows, stored)
            if self.options.join:
                stg.marks(step)["copied"] = UnitAttr()
            yield step
            if reduced:
                yield dist.AllReduceShardOp(step.outputs, reduced, dtype)
        elif reduced:
            yield dist.AllReduceGradientOp(values, reduced, dtype)

    def mark(self, op: Operation, origin: Operation) -> None:
        stg.marks(op)["phase"] = StringAttr("grad_reduce")
        if self.options.of_stage:
            stg.marks(op)[stg.OF_STAGE] = UnitAttr()
        elif not self.options.overlap or self.is_late(op):
            stg.marks(op)["late"] = UnitAttr()
        inherit(op, origin, NAME)

    def is_late(self, op: Operation) -> bool:
        """Whether a reduction is of a weight that `late` names, or of one in a module that it names."""
        names = self.options.late
        return names_weight(stg.scope_of(op), names, is_peeled=True) or bool(call_of(op, names))


def marking_first(insert: Callable[[Operation], None]) -> Callable[[Operation], None]:
    """Marks the first op that is inserted: it is not issued with the unit before."""
    pending = [UnitAttr()]

    def inserted(op: Operation) -> None:
        if pending:
            stg.marks(op)[stg.FOLLOWS_UNIT] = pending.pop()
        insert(op)

    return inserted


def serve(op: Operation, path: str) -> None:
    """Name the weight or the unit whose gradient an op reduces."""
    if path:
        stg.marks(op)["scope"] = StringAttr(path)


def before_stages(gradient: SSAValue) -> SSAValue:
    """A tied weight's gradient before it is summed with that of other ranks' stages."""
    return (
        gradient.owner.values[0] if isinstance(gradient.owner, dist.AllReduceTiedOp) else gradient
    )


def own_part(gradient: SSAValue) -> SSAValue:
    """A tied weight's gradient before what other stages have is added to it."""
    return followed(gradient, through(dist.TakeGradientOp, dist.AllReduceTiedOp))


def stack_type(value: SSAValue) -> StackType:
    assert isinstance(value.type, StackType)
    return value.type
