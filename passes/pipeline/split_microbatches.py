"""Run a step as microbatches and add up their gradients.

Before `split-microbatches{dim="B" size=2}`:

    stg.dim "B" = "32"
    dist.mesh <dp = 4>
    stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[D], bf16>
      %l, %dw = "test.op"(%x, %w) : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>)
        -> (!stg.tensor<[B/dp], fp32>, !stg.tensor<[D], bf16, partial [dp]>)
      stg.output weights %w : !stg.tensor<[D], bf16> gradients %dw : !stg.tensor<[D], bf16, partial [dp]>
    }

After:

    stg.dim "B" = "32"
    dist.mesh <dp = 4>
    stg.dim "mb" = "B/(2*dp)"
    stg.program "M" (%x : !stg.tensor<[B/mb, D], bf16>) {
      %w = stg.weight "w" : !stg.tensor<[D], bf16>
      %g = stg.accumulate over "mb" -> (!stg.tensor<[D], fp32, partial [dp]>) {
        %l, %dw = "test.op"(%x, %w) : (!stg.tensor<[B/mb, D], bf16>, !stg.tensor<[D], bf16>)
          -> (!stg.tensor<[B/(mb*dp)], fp32>, !stg.tensor<[D], bf16, partial [dp]>)
        stg.yield %dw : !stg.tensor<[D], bf16, partial [dp]>
      }
      stg.output weights %w : !stg.tensor<[D], bf16> gradients %g : !stg.tensor<[D], fp32, partial [dp]>
    }

`size` is sequences per microbatch on one data-parallel rank, 0 for all of them at once. Time is one more
axis that splits the batch, so that every size stays a closed form in the number of microbatches. `gradients` is the
dtype that they add up in. Microbatches that `dist.sequences` has are of other sequences each, whose sums are their sizes: then no type changes.

Without a batch dim, or with a dtype that no sum has, it cannot be run (E0705).

Microbatches are those of GPipe (arXiv:1811.06965), their sum in a wider dtype that of Megatron-LM
(`main_grad`, with `--accumulate-allreduce-grads-in-fp32`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from stagec import symbolic
from stagec.analysis.sequences import GOES_AS_ONE, ONE_ROW, SAY_HOW_MANY, ModuleSequences
from stagec.analysis.sizes import size_values
from stagec.diagnostics import quoted, refused, span_of
from stagec.dialects import dist, stg
from stagec.dialects.op import around
from stagec.dialects.types import FLOATS, TIME_AXIS, StackType, TensorType, tensor_of
from stagec.rewriting import inherit, insert_before, output_of, programs, set_type
from stagec.symbolic import conditions

NAME = "split-microbatches"

MOST_LAYERS = 2_000_000
"""Of all microbatches together: several times those of the largest runs."""


@dataclass(frozen=True)
class SplitMicrobatches(ModulePass):
    name = NAME

    dim: str
    """The batch dim."""
    size: int = 0
    """The size of one microbatch on one data-parallel rank, in units of the batch dim. 0: no splitting."""
    gradients: str = "fp32"
    """Dtype of the sums."""
    own: str = stg.OWN_DTYPE
    """What those are in of weights that have a dtype of their own: `own`, what is `wider`, or what `others` are in."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.size and self.dim not in size_values(op):
            message = f"`{NAME}`: there is no dim `{self.dim}`"
            place = next((span_of(each.location) for each in programs(op)), None)
            raise refused("E0705", message, place, help="name the batch dim")
        if self.gradients not in FLOATS:
            message = f"`{NAME}`: there is no dtype `{self.gradients}` of gradients"
            raise refused("E0705", message, help=f"choose one of {quoted(FLOATS)}")
        for program in programs(op):
            sequences = ModuleSequences.of(op)
            if sequences is not None and sequences.parts:
                count = symbolic.constant(len(sequences.parts))
                conditions.define(TIME_AXIS, count)
                add_axis(op, program, count)
                wrap(program, self.gradients, self.own)
                continue
            define_axis(op, program, self.dim, self.size)
            wrap(program, self.gradients, self.own)
            routed = routed_dims(program)
            check_weights(op, program, self.dim, routed)
            if not is_whole(op, program, self.dim):
                split_batch(program, [self.dim, *routed])


def batch_axes(program: stg.ProgramOp, dim: str) -> tuple[str, ...]:
    """The axes that split the batch: all that split it for any value."""
    types = (result.type for op in program.walk() for result in op.results)
    splits = [t.dim(dim).split for t in types if isinstance(t, TensorType) and dim in t.names]
    return max(splits, key=len, default=())


def check_extent(program: stg.ProgramOp, values: Mapping[str, int]) -> None:
    """E0216 if a step is longer than anyone's: layers and microbatches are written out, one by one, into traces."""
    total = symbolic.ZERO
    for op in program.walk():
        if isinstance(op, stg.RepeatOp):
            repeats = [each for each in (op, *around(op)) if isinstance(each, stg.RepeatOp)]
            total = total + symbolic.product(each.count.data for each in repeats)
    microbatches = symbolic.symbol(TIME_AXIS)
    extent = (total or symbolic.ONE) * microbatches
    reason = f"a step runs more than {MOST_LAYERS:,} layers of microbatches"
    if not conditions.compare(extent, "<=", MOST_LAYERS, values, reason):
        layers, number = int(total.evaluate(values)), values[TIME_AXIS]
        message = f"a step runs more than {MOST_LAYERS:,} layers of microbatches"
        notes = [f"{layers:,} layers, forward and backward, in {number:,} microbatches"]
        help_ = "choose a smaller batch, a larger microbatch, or fewer layers"
        place = span_of(program.location)
        raise refused("E0216", message, place, notes=notes, help=help_)


MICROBATCH = ("pipeline.given.microbatch", "microbatch_span", "pipeline.span")
"""Where a plan says how large a microbatch is."""


def define_axis(module: ModuleOp, program: stg.ProgramOp, dim: str, size: int) -> None:
    """Name the number of microbatches. One that is not whole is E0308."""
    axes = batch_axes(program, dim)
    local = symbolic.symbol(dim) / symbolic.product(map(symbolic.symbol, axes))
    count = local / size if size else symbolic.ONE
    values = size_values(module)
    exact = local / conditions.setting("microbatch", size) if size else count
    conditions.define(TIME_AXIS, exact)
    number = count.evaluate(conditions.unread(values))
    sequences = ModuleSequences.of(module)
    reason = "the microbatch does not divide the batch of a rank"
    if not conditions.note("whole", exact, holds=number.denominator == 1, reason=reason):
        on_rank = local.evaluate(values)
        message = f"microbatches of {size} do not divide the {on_rank} of `{dim}` on each rank"
        note = f"`{dim} = {values[dim]}` over {' x '.join(axes) or 'one rank'}"
        help_ = "choose a microbatch that divides it, or another batch"
        if sequences is not None or values.get(stg.SEQUENCES, 1) > 1:
            message = f"there are no microbatches of {size}: {GOES_AS_ONE}"
            note, help_ = ONE_ROW, SAY_HOW_MANY
        place = dist.clause_span(program, *MICROBATCH)
        raise refused("E0308", message, place, notes=[note], help=help_)
    if sequences is not None:
        conditions.read(exact, number)
    add_axis(module, program, count)


def is_whole(module: ModuleOp, program: stg.ProgramOp, dim: str) -> bool:
    """Whether a step needs the whole batch at once, which has another name beside its own: samples meet each other. Several microbatches are E0308."""
    ops = (op for op in program.walk() if isinstance(op, stg.RenameOp))
    renaming = next((op for op in ops if dim in (*op.old.data, *op.new.data)), None)
    if renaming is None:
        return False
    values = size_values(module)
    reason = "a microbatch has not the whole batch, which has another name"
    if not conditions.compare(symbolic.symbol(TIME_AXIS), "==", 1, values, reason):
        message = (
            f"`{dim}` is the whole batch here, and a step has {values[TIME_AXIS]} microbatches"
        )
        note = "samples of different microbatches never meet"
        help_ = "let each device compute all of its samples at once: leave `microbatch` out"
        place = dist.clause_span(program, *MICROBATCH)
        parts = [(place, "parts of the batch")] if place else []
        span = span_of(renaming.location)
        raise refused("E0308", message, span, secondary=parts, notes=[note], help=help_)
    return True


def check_weights(
    module: ModuleOp, program: stg.ProgramOp, dim: str, routed: Sequence[str]
) -> None:
    """E0308 for a weight that is as large as the batch: all microbatches have one, and each a part of the batch."""
    values = size_values(module)
    for op in program.body.block.ops:
        names = tensor_of(op.weight.type).names if isinstance(op, stg.WeightOp) else ()
        for name in names:
            reason = "a weight is as large as the batch, and microbatches are parts of it"
            is_one = name == dim and conditions.compare(
                symbolic.symbol(TIME_AXIS), "==", 1, values, reason
            )
            if name in routed or (name == dim and not is_one):
                message = f"`{name}` of a weight is as large as the batch, of which microbatches are parts"
                help_ = "a weight is one for all samples: give it a dim of its own"
                raise refused("E0308", message, span_of(op.location), help=help_)


def add_axis(module: ModuleOp, program: stg.ProgramOp, count: symbolic.Size) -> None:
    values = conditions.unread(size_values(module))
    check_extent(program, {**values, TIME_AXIS: count.integer(values)})
    op = stg.DimOp(TIME_AXIS, count)
    insert_before(program, [op])


def wrap(program: stg.ProgramOp, dtype: str, own: str) -> None:
    """Move everything but weights and the output into the loop over microbatches."""
    block = program.body.block
    output = output_of(program)
    inner = Block()
    for op in list(block.ops):
        if not isinstance(op, stg.WeightOp | stg.CacheOp | stg.OutputOp):
            op.detach()
            inner.add_op(op)
    end = stg.YieldOp(output.gradients)
    end.location = output.location
    inner.add_op(end)
    sums = [
        widened(gradient, weight.owner.gradient_dtype(dtype, own))
        for weight, gradient in zip(output.weights, output.gradients, strict=True)
        if isinstance(weight.owner, stg.WeightOp)
    ]
    loop = stg.AccumulateOp(TIME_AXIS, Region(inner), sums)
    insert_before(output, [loop], NAME)
    finished = stg.OutputOp([], output.weights, loop.sums)
    inherit(finished, output)
    Rewriter.replace_op(output, finished)


def widened(gradient: SSAValue, dtype: str) -> TensorType | StackType:
    value_type = gradient.type
    assert isinstance(value_type, TensorType | StackType)
    tensor = tensor_of(value_type).with_dtype(dtype)
    return value_type.with_tensor(tensor) if isinstance(value_type, StackType) else tensor


def routed_dims(program: stg.ProgramOp) -> list[str]:
    """The dims of experts' tokens, which are as many as the batch is large."""
    ops = (stg.DispatchOp, stg.FanOutOp, dist.TowerRecvOp)
    found = (op.tokens for op in program.walk() if isinstance(op, ops))
    return list(dict.fromkeys(tokens.data for tokens in found if tokens is not None))


def split_batch(program: stg.ProgramOp, dims: Sequence[str]) -> None:
    """Sizes in the loop are those of one microbatch."""

    def retype(value: SSAValue) -> None:
        value_type = value.type
        if not isinstance(value_type, TensorType | StackType):
            return
        tensor = tensor_of(value_type)
        for dim in dims:
            tensor = tensor.split_in_time(dim, TIME_AXIS)
        new = value_type.with_tensor(tensor) if isinstance(value_type, StackType) else tensor
        if new != value_type:
            set_type(value, new)

    for op in program.walk():
        for region in op.regions:
            for argument in region.block.args:
                retype(argument)
        for result in op.results:
            retype(result)
