"""Keep what layers save for the backward pass in the memory of the host.

Before `offload-activations{what="exp" prefetch=1}`:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
        %e = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        %n = stg.unary "neg" %e : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %n, %e : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>
      }
      %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>)
          slice(%s = %es : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
        %dm = stg.mul %dy, %s {phase = "bwd"}
          : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %dm : !stg.tensor<[B, D], bf16>
      }
      stg.output
    }

After:

    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %y, %hs = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
          -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
        %e = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        %n = stg.unary "neg" %e : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        %host = dist.store (%e) {phase = "fwd", made_by = "offload-activations"}
          : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %n, %host : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>
      }
      %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>)
          slice(%s = %hs : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>)
          -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
        %d = dist.load (%s) {phase = "bwd", prefetch = 1 : i64, made_by = "offload-activations"}
          : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        %dm = stg.mul %dy, %d {phase = "bwd"}
          : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
        stg.yield %dm : !stg.tensor<[B, D], bf16>
      }
      stg.output
    }

A value is stored behind its last reader of the forward pass, so that its memory on the device is free then, and loaded before
its first reader of the backward pass, `prefetch` layers ahead. Each direction has a stream of its own. This is what PyTorch's
`save_on_cpu` does, and with `recompute full`, where only the inputs of layers are saved, DeepSpeed's checkpoints in the memory of the
host (Rajbhandari et al. 2021, arXiv:2104.07857, section 5.2). What is saved outside of repeated layers stays.

With `nvme` what was stored is written to NVMe, and the backward pass reads it one layer before it is loaded: through the memory of the host,
which has it for that long. SSDTrain keeps activations on SSDs (Wu et al. 2024, arXiv:2408.10013), there without the host between.

`what` has `all`; `inputs`, what a layer is given by the one before; or names of ops, values and modules, as for
`recompute-activations`. Views are not stored: what they view is, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass

from stagec.analysis.recompute_choice import call_of, kinds_of
from stagec.analysis.sizes import mesh_of
from stagec.diagnostics import CompileError, Diagnostic
from stagec.dialects import dist, stg
from stagec.dialects.op import ancestor_in
from stagec.dialects.types import TensorType
from stagec.rewriting import inherit, insert_before, programs
from stagec.rewriting.saved_values import BlockPair, levels_of, remove_unread
from stagec.symbolic import conditions

NAME = "offload-activations"

ALL, INPUTS = "all", "inputs"


@dataclass(frozen=True)
class OffloadActivations(ModulePass):
    name = NAME

    what: tuple[str, ...]
    """`all`, `inputs`, or names of ops, values and modules. One that nothing saved is called is E0401."""
    prefetch: int = 1
    """How many layers ahead of the backward pass values are loaded."""
    nvme: bool = False
    """Whether they go on to NVMe, and are read from there a layer before they are loaded."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        mesh, met = mesh_of(op), set[str]()
        for program in programs(op):
            levels = levels_of(program)
            for level in levels:
                if level.outer is not None:
                    Offloading(self, mesh, level, met).run()
            remove_unread(levels)
        unmet = [word for word in self.what if word not in met]
        if unmet:
            found = programs(op)
            span = dist.clause_span(found[0], "offload.given.activations") if found else None
            raise CompileError(
                [
                    Diagnostic(
                        "E0401",
                        "no repeated layer saves anything to offload"
                        if word == ALL
                        else f"no repeated layer saves a value of `{word}` to offload",
                        span,
                        help="leave it out",
                    )
                    for word in unmet
                ]
            )


@dataclass
class Offloading:
    """One level: a layer's forward pass, and its backward pass."""

    options: OffloadActivations
    mesh: dict[str, int]
    level: BlockPair
    met: set[str]
    slices: dict[SSAValue, list[tuple[SSAValue, SSAValue]]] = field(default_factory=dict)
    """By what was computed: the slices of the backward pass, and the views behind them."""

    def run(self) -> None:
        for argument, value in self.level.saved().items():
            origin = self.origin(value)
            if self.is_chosen(origin):
                self.slices.setdefault(origin, []).append((argument, value))
        for origin, slices in self.slices.items():
            readers = [op for argument, _ in slices for op in self.readers(argument)]
            if readers:
                loaded = self.load(self.level.use(self.store(origin)), readers)
                for argument, value in slices:
                    argument.replace_all_uses_with(self.viewed(value, origin, loaded))

    def origin(self, value: SSAValue) -> SSAValue:
        """The value that has memory of its own."""
        while isinstance(value, OpResult) and self.is_view(value.op):
            value = value.op.operands[0]
        return value

    def is_view(self, op: Operation) -> bool:
        if isinstance(op, dist.CollectiveBase):
            return not any(conditions.is_split(axis, self.mesh) for axis in op.axes.data)
        return isinstance(op, stg.TensorOp) and op.IS_VIEW

    def is_chosen(self, value: SSAValue) -> bool:
        """Whether a value is this layer's to offload, and asked for."""
        if not self.level.defines(value) or not isinstance(value.type, TensorType):
            return False
        if isinstance(value, BlockArgument):
            is_carried = value.index < self.level.repeat.num_carried
            words = {ALL, INPUTS} if is_carried else set[str]()
        else:
            op = value.owner
            assert isinstance(op, Operation)
            if isinstance(op, stg.ConstantOp):
                return False
            words = {ALL, *stg.names_of(op), *kinds_of(op), op.name.partition(".")[2]}
            words |= {word for word in self.options.what if call_of(op, (word,))}
        asked = words.intersection(self.options.what)
        self.met |= asked
        return bool(asked)

    # Ops

    def store(self, value: SSAValue) -> SSAValue:
        """Copy a value to the host when the forward pass is done with it."""
        block = self.level.forward
        readers = [op for op in self.uses(value) if not isinstance(op, stg.YieldOp)]
        op = dist.StoreOp([value])
        stg.marks(op)["phase"] = StringAttr("fwd")
        if readers:
            last = max(readers, key=block.get_operation_index)
        else:
            last = value.owner if isinstance(value.owner, Operation) else None
        if last is None:
            first = block.first_op
            assert first is not None
            insert_before(first, [op], NAME)
        else:
            inherit(op, value.owner if isinstance(value.owner, Operation) else last, NAME)
            block.insert_op_after(op, last)
        return self.written(op) if self.options.nvme else op.outputs[0]

    def written(self, store: dist.StoreOp) -> SSAValue:
        """What was stored, on NVMe."""
        op = dist.WriteOp(store.outputs)
        stg.marks(op)["phase"] = StringAttr("fwd")
        inherit(op, store, NAME)
        self.level.forward.insert_op_after(op, store)
        return op.outputs[0]

    def uses(self, value: SSAValue) -> Iterator[Operation]:
        """The ops of the layer that read a value, or a view of it."""
        for use in value.uses:
            op = ancestor_in(self.level.forward, use.operation)
            yield op
            for view in op.results if self.is_view(op) else ():
                yield from self.uses(view)

    def readers(self, argument: SSAValue) -> list[Operation]:
        """The ops of the layer's backward pass that read a slice."""
        return [ancestor_in(self.level.backward, use.operation) for use in argument.uses]

    def load(self, host: SSAValue, readers: list[Operation]) -> SSAValue:
        block = self.level.backward
        first = min(readers, key=block.get_operation_index)
        late = all(stg.phase_of(reader) == "wgrad" for reader in readers)
        self.first = first
        steps: list[tuple[type[dist.HostOp], int]] = [(dist.LoadOp, self.options.prefetch)]
        if self.options.nvme:
            steps.insert(0, (dist.ReadOp, self.options.prefetch + 1))
        for kind, ahead in steps:
            op = kind([host])
            stg.marks(op)["phase"] = StringAttr("wgrad" if late else "bwd")
            stg.marks(op)["prefetch"] = IntegerAttr(ahead, i64)
            insert_before(first, [op], NAME)
            host = op.outputs[0]
        return host

    def viewed(self, value: SSAValue, origin: SSAValue, loaded: SSAValue) -> SSAValue:
        """What was saved, as a view of what is loaded."""
        if value is origin:
            return loaded
        assert isinstance(value, OpResult)
        op = value.op
        source = op.operands[0]
        view = op.clone({source: self.viewed(source, origin, loaded)})
        stg.marks(view)["phase"] = StringAttr("bwd")
        view.location = op.location
        self.level.backward.insert_op_before(view, self.first)
        return view.results[value.index]
