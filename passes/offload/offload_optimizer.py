"""Keep the optimizer's state in the memory of the host, and take it through the device layer by layer.

Before `offload-optimizer{prefetch=1}`:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], fp32>>
      stg.optimizer_step "sgd_momentum" states "fp32" (%w) from (%g) {phase = "optim"}
        : !stg.stack<"L" x !stg.tensor<[D], bf16>> from !stg.stack<"L" x !stg.tensor<[D], fp32>>
      stg.output
    }

After:

    stg.program "M" () {
      %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
      %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], fp32>>
      %m = dist.state "w" 0 {phase = "optim", made_by = "offload-optimizer"} : !stg.stack<"L" x !stg.tensor<[D], fp32>>
      stg.repeat "L" slice(%wl = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>,
          %gl = %g : !stg.stack<"L" x !stg.tensor<[D], fp32>>, %ml = %m : !stg.stack<"L" x !stg.tensor<[D], fp32>>)
          attributes {phase = "optim", made_by = "offload-optimizer"} {
        %d = dist.load (%ml) {phase = "optim", prefetch = 1 : i64, made_by = "offload-optimizer"}
          : (!stg.tensor<[D], fp32>) -> !stg.tensor<[D], fp32>
        %u = stg.optimizer_step "sgd_momentum" states "fp32" (%wl) from (%gl) with (%d)
          {phase = "optim", made_by = "offload-optimizer"}
          : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32> with !stg.tensor<[D], fp32> -> !stg.tensor<[D], fp32>
        %h = dist.store (%u) {phase = "optim", made_by = "offload-optimizer"}
          : (!stg.tensor<[D], fp32>) -> !stg.tensor<[D], fp32>
        stg.yield
      }
      stg.output
    }

Moments and master weights live on the host. The update runs on the device: what it keeps of the next `prefetch` layers is loaded
meanwhile, and stored again behind it, so that the device has the state of a few layers at a time (ZeRO-Infinity, Rajbhandari
et al. 2021, arXiv:2104.07857, section 5.2.2, streams it likewise). With `parameters`, weights come from the host and go back too. A weight
outside of layers is updated alone. Operations and bytes of the update are what they were.

With `on_host` the host computes the update, as in ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840, section 4.1): gradients go there, in the dtype in which
they were reduced, moments and master weights stay, and what comes back is weights as the device has them, while the host updates the next layer (section 5.1:
copies are overlapped with the update). What reads weights after the step, ZeRO's gathers, reads what was loaded.

Gradients leave (`leaves`) as soon as they are complete and reduced, a layer at a time, while the backward pass goes on (ibid., section 4.1;
`copy_grads_in_partition` in DeepSpeed's `stage_1_and_2.py`, `partition_grads` in its `stage3.py`). Of what is to be known of all of them, their norm,
each leaves its term behind: DeepSpeed takes it on the device before it copies (`set_norm_for_param_grad_in_gpu`), and scales on the host what is there
(`unscale_and_clip_grads`). With states on NVMe gradients wait there
too (`swap_out_gradients`).

Gradients that each microbatch reduces add up where `sums` says: FSDP2's `CPUOffloadPolicy` stores them each time, and the CPU adds them to what it has
(`foreach_reduce` in `_fsdp_collectives.py`), which then finds the norm, too; DeepSpeed stores them and loads them again to add to them (`partition_grads` in
`stage3.py`, `async_accumulate_grad_in_cpu_via_gpu` in `stage_1_and_2.py`), and copies them as above when they are complete. Where a step has one microbatch
nothing is added up, and gradients leave once; but `partition_grads` stores and loads those, too (`micro_step_id == 0`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, UnitAttr, i64
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec.analysis.sizes import at_first, size_values
from stagec.dialects import dist, stg
from stagec.dialects.op import block_of
from stagec.dialects.stg.optimizer import EIGHT_BIT, is_small
from stagec.dialects.types import StackType, tensor_of, with_dtype
from stagec.dialects.use_def import followed, one_by_one, weight_path
from stagec.rewriting import inherit, programs
from stagec.symbolic import conditions, symbol

NAME = "offload-optimizer"


@dataclass(frozen=True)
class OffloadOptimizer(ModulePass):
    name = NAME

    prefetch: int = 1
    """How many layers ahead state is loaded."""
    states: bool = True
    """Whether moments and master weights are on the host."""
    parameters: bool = False
    """Whether the weights are."""
    on_host: bool = False
    """Whether the host computes the update."""
    sums: str = "device"
    """Of gradients that each microbatch reduces, where the host updates: they add up on the `device`; on the `host`, whose CPU adds what each stores; or are
    `returned`: stored by each microbatch, and loaded again to be added to; or `several`: likewise where there are several microbatches."""
    states_on_nvme: bool = False
    """Whether states, master weights and gradients are on NVMe, from where the host reads them for its update, and to where it writes them after it."""
    parameters_on_nvme: bool = False
    """Whether the weights are: those of a master copy are written there, others read too."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sizes = size_values(op)
        for program in programs(op):
            for step in list(program.body.block.ops):
                if isinstance(step, stg.OptimizerStepOp):
                    Streaming(self, step, sizes).run()


@dataclass
class Streaming:
    options: OffloadOptimizer
    step: stg.OptimizerStepOp
    sizes: Mapping[str, int]

    def run(self) -> None:
        step = self.step
        if self.options.on_host and self.options.sums != "device":
            self.pass_through_host()
        gone = self.leave() if self.options.on_host else {}
        updates = [
            OffloadedUpdate(
                number,
                weight,
                gone.get(gradient, gradient),
                self.where_it_stays(weight).kept(weight),
                self.scales(gradient),
            )
            for number, (weight, gradient) in enumerate(
                zip(step.weights, step.gradients, strict=True)
            )
        ]
        if not self.options.parameters and not any(update.kept for update in updates):
            return
        by_layers: dict[object, list[OffloadedUpdate]] = {}
        for update in updates:
            own = self.where_it_stays(update.weight)
            if isinstance(update.weight.type, StackType):
                key = (update.weight.type.layers, own is self)
                by_layers.setdefault(key, []).append(update)
            else:
                ops, news = own.updated([update], is_layer=False)
                self.insert(ops)
                for new in news:
                    self.come_back(update.weight, new)
        for layers in by_layers.values():
            repeat = self.where_it_stays(layers[0].weight).repeated(layers)
            self.insert([repeat])
            for update, new in zip(layers, repeat.results, strict=False):
                self.come_back(update.weight, new)
        step.detach()
        step.erase()

    def where_it_stays(self, weight: SSAValue) -> Streaming:
        """How a weight is updated: one that is persistent stays on the device."""
        owner = followed(weight, one_by_one(dist.TakeShardOp)).owner
        is_here = isinstance(owner, stg.WeightOp) and owner.persistent is not None
        on_device = replace(self.options, parameters=False, parameters_on_nvme=False)
        return replace(self, options=on_device) if is_here and self.options.parameters else self

    def pass_through_host(self) -> None:
        """Let the gradients that each microbatch reduces go to the host, where their sums are between microbatches."""
        is_there = self.options.sums == "host"
        loops = [g.owner for g in self.step.gradients if isinstance(g.owner, stg.AccumulateOp)]
        for loop in dict.fromkeys(loops):
            is_one = conditions.compare(symbol(loop.axis.data), "==", 1, self.sizes)
            if is_one and self.options.sums == "several":
                continue
            last = loop.yield_op
            summed = [
                last.operands[each.index]
                for each in loop.results
                if any(use.operation is self.step for use in each.uses)
            ]
            then = dist.LoadOp if not is_there else None if is_one else dist.SumOnHostOp
            leaving = Leaving(self.step, [], then)
            ops, gone, _ = leaving.of(list(dict.fromkeys(summed)))
            for op in ops:
                loop.body.block.insert_op_before(op, last)
            last.operands = [gone.get(value, value) for value in last.operands]

    def are_there(self, gradient: SSAValue) -> bool:
        """Whether a gradient is a sum that the host made."""
        return self.options.sums == "host" and isinstance(gradient.owner, stg.AccumulateOp)

    def scales(self, gradient: SSAValue) -> bool:
        """Whether the host scales a gradient as it updates: what it has found a norm of it has scaled."""
        is_scaled = self.options.on_host and self.step.scale is not None
        return is_scaled and not self.are_there(gradient)

    def leave(self) -> dict[SSAValue, SSAValue]:
        """Let gradients go to the host: where each is there, by where it was on the device."""
        block, step = block_of(self.step), self.step
        ahead = [op for op in block.ops if isinstance(op, stg.GradientStatisticOp)]
        read = [op for op in ahead if op.gradients]
        kinds = [op.kind.data for op in read]
        leaving = Leaving(step, kinds, dist.WriteOp if self.options.states_on_nvme else None)
        distinct = list(dict.fromkeys(step.gradients))
        there = [each for each in distinct if self.are_there(each)]
        ops, gone, terms = leaving.of([each for each in distinct if each not in there])
        if there:
            for kind, own in zip(kinds, terms, strict=True):
                found, number = self.on_host(kind, there)
                ops += found
                own.append(number)
            if self.options.states_on_nvme:
                write = dist.WriteOp(there)
                self.own(write)
                ops.append(write)
                gone |= zip(there, write.outputs, strict=True)
        for op in ops:
            block.insert_op_before(op, ahead[0] if ahead else step)
        for op, own in zip(read, terms, strict=True):
            axes = tensor_of(op.result.type).partial
            total = stg.GradientStatisticOp(op.kind.data, own, axes, before=op.before)
            stg.marks(total).take(stg.marks(op))
            total.location = op.location
            Rewriter.replace_op(op, total)
        return gone

    def on_host(self, kind: str, gradients: Sequence[SSAValue]) -> tuple[list[Operation], SSAValue]:
        """What is to be known of gradients that are on the host, which finds it out, and where the device reads the number."""
        statistic = stg.GradientStatisticOp(kind, gradients, ())
        stg.marks(statistic)["on_host"] = UnitAttr()
        load = dist.LoadOp([statistic.result])
        for op in (statistic, load):
            self.own(op)
        return [statistic, load], load.outputs[0]

    def come_back(self, weight: SSAValue, loaded: SSAValue) -> None:
        """Let what reads a weight after the step read what came back from the host."""
        block = block_of(self.step)
        weight.replace_uses_with_if(
            loaded,
            lambda use: (
                use.operation.parent_block() is block
                and self.step.is_before_in_block(use.operation)
            ),
        )

    def insert(self, ops: Sequence[Operation]) -> None:
        for op in ops:
            self.own(op)
            block_of(self.step).insert_op_before(op, self.step)

    def own(self, op: Operation) -> None:
        stg.marks(op)["phase"] = StringAttr("optim")
        inherit(op, self.step, NAME)
        stg.marks(op)["made_by"] = StringAttr(NAME)

    def kept(self, weight: SSAValue) -> list[SSAValue]:
        """The state of a weight on the host: moments, then the master copy if there is one."""
        step = self.step
        if not self.options.states:
            return []
        dtypes = [self.dtype_of_states(weight)] * stg.NUM_STATES[step.algorithm.data]
        if step.master is not None and self.has_master(weight):
            dtypes.append(step.master.data)
        if step.average is not None:
            dtypes.append(step.average.data)
        if self.travels:
            # The new weights, as the device has them, before they travel.
            dtypes.append(tensor_of(weight.type).dtype)
        types = [with_dtype(weight.type, dtype) for dtype in dtypes]
        found: list[SSAValue] = []
        for number, kind in enumerate(types):
            op = dist.StateOp(path_of(weight), number, like=kind)
            self.insert([op])
            found.append(op.state)
        return found

    def dtype_of_states(self, weight: SSAValue) -> str:
        """Those of small tensors stay in 32 bits where others are in 8."""
        own = self.step.states.data
        if own != EIGHT_BIT:
            return own
        # Of ranks with parts of other sizes the first one says so: they run one program.
        small = at_first(is_small(weight), self.sizes)
        return "fp32" if conditions.compare(small, "==", 1, self.sizes) else own

    @property
    def travels(self) -> bool:
        """Whether new weights go from the host's update to where they stay: to the device, or to NVMe."""
        options = self.options
        return options.on_host and (not options.parameters or options.parameters_on_nvme)

    def has_master(self, weight: SSAValue) -> bool:
        """Whether the copy that is updated is wider than a weight."""
        return self.step.master is not None and not stg.is_wide(weight, self.step.master.data)

    def repeated(self, updates: Sequence[OffloadedUpdate]) -> stg.RepeatOp:
        """The updates of stacks of one length, layer by layer."""
        body = Block()
        stacks: list[SSAValue] = []

        def sliced(value: SSAValue) -> SSAValue:
            stacks.append(value)
            return stg.slice_arg(body, value)

        inner = [
            replace(
                u,
                weight=sliced(u.weight),
                gradient=sliced(u.gradient),
                kept=[sliced(k) for k in u.kept],
            )
            for u in updates
        ]
        nested: dict[object, list[OffloadedUpdate]] = {}
        plain: list[OffloadedUpdate] = []
        for update in inner:
            if isinstance(update.weight.type, StackType):
                nested.setdefault(update.weight.type.layers, []).append(update)
            else:
                plain.append(update)
        news: dict[SSAValue, SSAValue] = {}
        if plain:
            ops, made = self.updated(plain, is_layer=True)
            body.add_ops(ops)
            news |= zip((u.weight for u in plain), made, strict=False)
        for layers in nested.values():
            within = self.repeated(layers)
            body.add_op(within)
            news |= zip((u.weight for u in layers), within.results, strict=False)
        body.add_op(stg.YieldOp([news[u.weight] for u in inner] if news else []))
        repeat = stg.RepeatOp.over(stacks, body)
        self.own(repeat)
        return repeat

    def updated(
        self, updates: Sequence[OffloadedUpdate], is_layer: bool
    ) -> tuple[list[Operation], list[SSAValue]]:
        """Load, update, store, and the new weights where the host made them. What the weights are read from is the device, or what was loaded."""
        if self.options.on_host:
            return self.updated_on_host(updates, is_layer)
        weights = [u.weight for u in updates]
        host = [
            *(weights if self.options.parameters else ()),
            *(k for u in updates for k in u.kept),
        ]
        gradients = [u.gradient for u in updates]
        reads = weights if self.options.parameters_on_nvme else []
        read = dist.ReadOp(reads) if reads else None
        if read is not None:
            host[: len(reads)] = read.outputs
        load = dist.LoadOp(host) if host else None
        loaded = list(load.outputs) if load else []
        if self.options.parameters:
            weights = loaded[: len(weights)]
        update = self.step.of(weights, gradients, loaded, chosen=[u.number for u in updates])
        ops: list[Operation] = [update]
        if load is not None:
            self.ahead(load, is_layer)
            store = dist.StoreOp(list(update.updated))
            ops = [load, update, store]
            if read is not None:
                self.ahead(read, is_layer, before=1)
                ops = [read, *ops, dist.WriteOp(store.outputs[: len(reads)])]
        for op in ops:
            self.own(op)
        return ops, []

    def ahead(self, load: Operation, is_layer: bool, before: int = 0) -> None:
        """Issue what brings the state of a layer some layers before its update; `before` other copies that follow it."""
        if is_layer:
            stg.marks(load)["prefetch"] = IntegerAttr(self.options.prefetch + before, i64)
        else:
            stg.marks(load)["apart"] = UnitAttr()

    def updated_on_host(
        self, updates: Sequence[OffloadedUpdate], is_layer: bool
    ) -> tuple[list[Operation], list[SSAValue]]:
        """Update, and load the new weights: those that are on the host stay there."""
        options = self.options
        weights, kept = [u.weight for u in updates], [k for u in updates for k in u.kept]
        # The new weights, the last of what is kept of each, are made to travel alone where the host's copy is wider.
        new = {u.kept[-1] for u in updates if self.travels}
        made = {u.kept[-1] for u in updates if self.travels and self.has_master(u.weight)}
        of_states = options.states_on_nvme
        of_new = options.parameters_on_nvme or (of_states and not options.parameters)
        written = [
            n for n, k in enumerate(kept) if (k in new and of_new) or (k not in new and of_states)
        ]
        if not options.parameters:
            written = [n for n in written if kept[n] not in made]
        states = [number for number in written if kept[number] not in made]
        gradients = [u.gradient for u in updates]
        ops: list[Operation] = []
        away = gradients if of_states else []
        if states or away:
            read = dist.ReadOp([*(kept[number] for number in states), *away])
            self.ahead(read, is_layer)
            for number, value in zip(states, read.outputs, strict=False):
                kept[number] = value
            gradients[: len(away)] = read.outputs[len(states) :]
            ops = [read]
        step = self.step.of(weights, gradients, kept)
        stg.marks(step)["on_host"] = UnitAttr()
        if any(each.scales for each in updates):
            stg.marks(step)["scales"] = UnitAttr()
        ops.append(step)
        if written:
            ops.append(dist.WriteOp([step.updated[number] for number in written]))
        found: list[SSAValue] = []
        if not options.parameters:
            last, at = [], -1
            for each in updates:
                at += len(each.kept)
                last.append(step.updated[at])
            load = dist.LoadOp(last)
            stg.marks(load)["home"] = UnitAttr()
            ops.append(load)
            found = list(load.outputs)
        for op in ops:
            self.own(op)
        return ops, found


@dataclass
class Leaving:
    """Takes gradients to the host as soon as they are complete."""

    step: stg.OptimizerStepOp
    kinds: Sequence[str]
    """What is to be known of all of them, of which each has a term."""
    then: type[dist.HostOp] | None
    """What is done to what was stored: it is written to NVMe, added up, or loaded again."""

    def of(
        self, gradients: Sequence[SSAValue], is_layer: bool = False
    ) -> tuple[list[Operation], dict[SSAValue, SSAValue], list[list[SSAValue]]]:
        """What is to be done; where each gradient is then; and the terms of each kind. Those of a layer go together, others each alone."""
        ops: list[Operation] = []
        gone: dict[SSAValue, SSAValue] = {}
        terms: list[list[SSAValue]] = [[] for _ in self.kinds]
        by_layers: dict[object, list[SSAValue]] = {}
        for gradient in gradients:
            if isinstance(gradient.type, StackType):
                by_layers.setdefault(gradient.type.layers, []).append(gradient)
        for stacks in by_layers.values():
            repeat = self.of_layers(stacks)
            ops.append(repeat)
            gone |= zip(stacks, repeat.results, strict=False)
            rest = repeat.results[len(stacks) :]
            each = len(rest) // len(terms) if terms else 0
            for number, own in enumerate(terms):
                own += rest[number * each : (number + 1) * each]
        plain = [gradient for gradient in gradients if not isinstance(gradient.type, StackType)]
        for group in ([plain] if plain else []) if is_layer else [[each] for each in plain]:
            for kind, own in zip(self.kinds, terms, strict=True):
                statistic = stg.GradientStatisticOp(kind, group, ())
                stg.marks(statistic)["unscaled"] = UnitAttr()
                ops.append(self.marked(statistic))
                own.append(statistic.result)
            copy: dist.HostOp = dist.StoreOp(group)
            ops.append(self.marked(copy, apart=True))
            if self.then is not None:
                copy = self.then(copy.outputs)
                ops.append(self.marked(copy, apart=True))
            gone |= zip(group, copy.outputs, strict=True)
        return ops, gone, terms

    def of_layers(self, stacks: Sequence[SSAValue]) -> stg.RepeatOp:
        """The gradients of stacks of one length, layer by layer as the backward pass makes them; behind what is gone, terms."""
        body = Block()
        arguments = [stg.slice_arg(body, stack) for stack in stacks]
        ops, gone, terms = self.of(arguments, is_layer=True)
        yielded = [*(gone[each] for each in arguments), *(each for own in terms for each in own)]
        body.add_ops([*ops, stg.YieldOp(yielded)])
        repeat = stg.RepeatOp.over(stacks, body, reverse=True)
        self.marked(repeat)
        del stg.marks(repeat)[stg.LEAVES]
        return repeat

    def marked(self, op: Operation, *, apart: bool = False) -> Operation:
        inherit(op, self.step, NAME)
        stg.marks(op).update({"phase": StringAttr("grad_reduce"), stg.LEAVES: UnitAttr()})
        stg.marks(op)["made_by"] = StringAttr(NAME)
        if apart:
            stg.marks(op)["apart"] = UnitAttr()
        return op


@dataclass(frozen=True)
class OffloadedUpdate:
    """A weight, the `number`-th of the step, its gradient, what the host keeps for it, and whether it scales the gradient."""

    number: int
    weight: SSAValue
    gradient: SSAValue
    kept: list[SSAValue]
    scales: bool


def path_of(weight: SSAValue) -> str:
    """The path of the parameter that a weight, or a shard of it, is."""
    return weight_path(followed(weight, one_by_one(dist.TakeShardOp)))
