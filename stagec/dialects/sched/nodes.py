"""Ops that become nodes of a trace: kernels, collectives, transfers; what they cost, and the streams that they run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec.dialects.attributes import NamesAttr, RequestsAttr, SizeAttr
from stagec.dialects.marks import (
    ISSUED_WITH,
    MarkedOp,
    count_mark,
    flag_mark,
    text,
    text_mark,
    word_mark,
)
from stagec.dialects.memory import PLAIN, Effects, EffectsAttr, NodeMemory
from stagec.dialects.op import DefaultBuilder, op_definition
from stagec.dialects.sched.actions import (
    Collective,
    Compute,
    NodeAction,
    Sum,
    Transfer,
)
from stagec.dialects.sched.crossing import RECV_STREAM, SEND_STREAM, verify_number
from stagec.dialects.sched.host_copy import DIRECTIONS, UPDATE_STREAM, host_stream
from stagec.dialects.sched.node import CommunicationOp, NodeNumbers, NodeOp
from stagec.dialects.sched.pools import PoolRecvOp, PoolSendOp
from stagec.dialects.types import ALL_POOLS, ValueType, tensor_of, verify_dtypes
from stagec.dialects.work import Work, WorkAttr
from stagec.symbolic import ONE, ZERO, Size

COMPUTE_STREAM = "compute"
COPY_IN = "copy_in"  # fills the buffer in which gradients travel
STREAMS = (
    COMPUTE_STREAM,
    SEND_STREAM,
    RECV_STREAM,
    PoolSendOp.STREAM,
    PoolRecvOp.STREAM,
    *map(host_stream, DIRECTIONS),
    UPDATE_STREAM,
)
"""The streams that there are besides `comm_stream`."""
KINDS = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")


def comm_stream(axes: Sequence[str]) -> str:
    """The stream of the collectives over some axes."""
    return f"comm.{'.'.join(axes)}"


@op_definition
class ComputeOp(NodeOp):
    """One kernel, or a few that belong together: what it computes, and what it reads from and writes to the device's memory.

    - operands and results: tensors of any shapes, as large as the rank's own parts of them ([B/dp, S, F/tp], say)
    - `flops`: floating-point operations of one run on one rank, a multiplication and an addition being two
    - `again`: those of them that another op has done before, as the backward pass of a fused attention makes the scores again
    - `reads`, `writes`: bytes of the device's memory in one run
    - `kernels`: how many kernels it is, where it is not one
    - `scalars`: how many elements its kernels compute one by one, where they do not load vectors
    - `requests`: the sequences of a row, where attention is about sequences of several kinds
    - `window`: how many positions a query of attention looks back, where it is not all
    """

    name = "sched.compute"

    op = prop_def(StringAttr)
    inputs = var_operand_def()
    flops = prop_def(SizeAttr)
    again = opt_prop_def(SizeAttr)
    reads = prop_def(SizeAttr)
    writes = prop_def(SizeAttr)
    work = opt_prop_def(WorkAttr)
    """The kind of work, which says how a device does it; nothing: it moves memory."""
    kernels = opt_prop_def(SizeAttr)
    """How many are launched for it; nothing: one."""
    scalars = opt_prop_def(SizeAttr)
    requests = opt_prop_def(RequestsAttr)
    window = opt_prop_def(SizeAttr)
    effects = opt_prop_def(EffectsAttr)
    outputs = var_result_def()

    assembly_format = (
        "$op `(` $inputs `)` `flops` $flops (`again` $again^)? `reads` $reads `writes` $writes `on` $stream "
        "(`as` $work^)? (`kernels` $kernels^)? (`scalars` $scalars^)? (`requests` $requests^)? (`window` $window^)? "
        "(`in` $segment^)? (`effects` $effects^)? (`memory` $memory^)? attr-dict "
        "`:` functional-type($inputs, $outputs)"
    )

    def __init__(
        self,
        op: str,
        inputs: Sequence[SSAValue],
        result_types: Sequence[Attribute],
        flops: Size,
        reads: Size,
        writes: Size,
        stream: str = COMPUTE_STREAM,
        effects: Effects = PLAIN,
        work: Work = Work.OTHER,
        again: Size = ZERO,
        kernels: Size = ONE,
        scalars: Size = ZERO,
    ) -> None:
        super().__init__(
            [list(inputs)],
            [list(result_types)],
            op=op,
            flops=flops,
            again=again if again != ZERO else None,
            reads=reads,
            writes=writes,
            stream=stream,
            work=None if work == Work.OTHER else WorkAttr(work),
            kernels=None if kernels == ONE else kernels,
            scalars=None if scalars == ZERO else scalars,
            effects=written_effects(effects),
        )

    @property
    def node_name(self) -> str:
        return self.op.data

    def action(self, numbers: NodeNumbers) -> NodeAction:
        flops, written = numbers.flops(self.flops.data), numbers.num_bytes(self.writes.data)
        moved = numbers.num_bytes(self.reads.data) + written
        kernels = 1 if self.kernels is None else numbers.number(self.kernels.data)
        kernel, work, again = numbers.kernel(self), work_of(self), numbers.read_before(self)
        return Compute(flops, moved, written, kernel, work, kernels, again)

    @property
    def sums(self) -> tuple[Sum, ...]:
        return (self.flops.data,), (self.reads.data, self.writes.data)

    @property
    def computes(self) -> bool:
        """Whether other computation waits for it: a kernel that communicates forwards what it gets beside it."""
        return self.stream.data == COMPUTE_STREAM

    def verify_(self) -> None:
        super().verify_()
        verify_work(self, work_of(self))


def verify_work(op: ComputeOp, work: Work) -> None:
    """Check that an op whose time depends on its shapes has operands and results of such shapes."""
    ranks = OPERAND_RANKS.get(work, ())
    known = [tensor_of(each.type) for each in op.inputs if isinstance(each.type, ValueType)]
    fits = len(known) >= len(ranks) and all(
        len(own.dims) >= least for own, least in zip(known, ranks, strict=False)
    )
    if ranks and not (fits and op.outputs and isinstance(op.outputs[0].type, ValueType)):
        shapes = ", ".join(str(least) for least in ranks)
        raise VerifyException(
            f"sched.compute: `{work}` has a result, and {len(ranks)} tensors of at least {shapes} dims as its first operands"
        )


OPERAND_RANKS = {
    Work.PRODUCT: (0, 0),
    Work.ATTENTION: (3, 3, 3),
    Work.ATTENTION_GRAD: (3, 3, 3, 3),
    Work.LATENT_ATTENTION: (3, 3, 2),
    Work.DISPATCH: (1, 1),
}
"""Of the kinds of work that are read off shapes: the dims that each of the first operands has, at least."""


@op_definition
class CollectiveOp(CommunicationOp):
    """A collective over the ranks that differ along `axes` only.

    - operands and results: tensors, or shards of parameters, of any shapes; they travel as one buffer of elements of `dtype`
    - `bytes_in`, `bytes_out`: bytes of one rank's buffer before and after. With n ranks an all-gather makes b into n*b, a reduce-scatter n*b into b, an
      all-reduce and an all-to-all keep the size
    - `bucket_bytes`: neighbours of its kind in issue order join until they have so many bytes, the first of them until `first_bucket_bytes`
    """

    name = "sched.collective"

    kind = prop_def(StringAttr)
    values = var_operand_def()
    axes = prop_def(NamesAttr)
    dtype = prop_def(StringAttr)
    bytes_in = prop_def(SizeAttr)
    bytes_out = prop_def(SizeAttr)
    effects = opt_prop_def(EffectsAttr)
    bucket_bytes = opt_prop_def(IntegerAttr)
    first_bucket_bytes = opt_prop_def(IntegerAttr)
    lag = count_mark("lag")
    """A gather of parameters in the forward pass: it may begin when the one so many before it is due."""
    prefetch = count_mark("prefetch")
    """A gather of parameters in the backward pass: so many units ahead it is issued."""
    unit = count_mark("unit")
    hook = count_mark("hook")
    """A gather of a unit that a pipeline's stage frees and gathers again, not in each of its passes: the unit's number. Gathers of one number
    are of the same parameters; a layer has one. Which of their runs a pass reads is what `gathered` of a `sched.program` says."""
    evicted = flag_mark("evicted")
    """A gather of a stage whose parameters are freed where others of its rank need the room, and gathered again before it goes on."""
    issued = word_mark("issued", ISSUED_WITH)
    """A gather that is issued once per step, in the first forward pass of its stage: as that begins, or as its unit does."""
    ranks = count_mark("ranks")
    """How many ranks all pools of a job have together, for a collective over all of them."""
    tied = text_mark("tied")
    """The path of the weight whose ranks alone it is among: see `sched.program`."""
    bucket_end = count_mark("bucket_end")
    """A bucket that it is in ends at a multiple of so many elements, and of the ranks."""
    checked = flag_mark("checked")
    """The host reads the norm of what it sums, or a bucket that it is in, before it launches that: it waits for what was launched before."""
    of_whole = flag_mark("of_whole")
    """It sums in whole buffers: when all buckets are reduced."""
    pads = flag_mark("pads")
    """It is what a bucket has at its end beside what it joins: `fill-buckets`."""
    apart = flag_mark("apart")
    """It is issued apart from its neighbours."""
    gives_way = flag_mark("gives_way")
    """What waits for it lets a task go first that overlaps its own."""
    told = flag_mark("told")
    """It makes sizes of what comes behind it, which the host has to know before it launches that."""
    leaves_units = flag_mark("leaves_units")
    """Products beside it leave it the multiprocessors that it takes, or it takes none."""
    outputs = var_result_def()

    assembly_format = (
        "$kind `(` $values `)` `over` $axes `in` $dtype `bytes` $bytes_in `to` $bytes_out "
        "`on` $stream (`bucket` $bucket_bytes^ `first` $first_bucket_bytes)? (`in` $segment^)? "
        "(`effects` $effects^)? (`memory` $memory^)? attr-dict "
        "`:` functional-type($values, $outputs)"
    )

    def __init__(
        self,
        kind: str,
        values: Sequence[SSAValue],
        axes: Sequence[str],
        result_types: Sequence[Attribute],
        dtype: str,
        bytes_in: Size,
        bytes_out: Size,
        bucket: tuple[int, int] | None = None,
        effects: Effects = PLAIN,
    ) -> None:
        """`bucket`: bytes of a bucket, and of the first one."""
        bucket_bytes, first_bucket_bytes = bucket or (None, None)
        super().__init__(
            [list(values)],
            [list(result_types)],
            kind=kind,
            axes=axes,
            dtype=dtype,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            stream=comm_stream(axes),
            effects=written_effects(effects),
            bucket_bytes=bucket_bytes,
            first_bucket_bytes=first_bucket_bytes,
        )

    @property
    def node_name(self) -> str:
        return self.kind.data

    def action(self, numbers: NodeNumbers) -> NodeAction:
        return Collective(
            self.kind.data,
            self.axes.data,
            numbers.num_bytes(self.bytes_in.data),
            numbers.num_bytes(self.bytes_out.data),
            self.dtype.data,
            numbers.among(text(self, "tied")),
            self.ranks_of_job,
        )

    @property
    def sums(self) -> tuple[Sum, ...]:
        return (self.bytes_in.data,), (self.bytes_out.data,)

    @property
    def ranks_of_job(self) -> int:
        """How many ranks all pools have together, for a collective over all of them; else 0."""
        return self.ranks.value.data if isinstance(self.ranks, IntegerAttr) else 0

    def verify_(self) -> None:
        super().verify_()
        if self.kind.data not in KINDS:
            raise self.mistake(f"there is no collective `{self.kind.data}`")
        if not self.axes.data:
            raise self.mistake("a collective runs over some axis")
        if (self.axes.data == (ALL_POOLS,)) != ("ranks" in self.properties):
            raise self.mistake("one over all pools has so many ranks")
        verify_dtypes(self.name, self.dtype)


class TransferOp(DefaultBuilder, CommunicationOp):
    """Shared by sends and receives: one buffer, to or from the rank `shift` further along `axes`.

    Values of any shapes travel as one buffer of `bytes` bytes, elements of `dtype`, with the same shapes at both ends. `shift` counts ranks.
    Both ends have the same channel, so that a receive takes what was sent for it.
    """

    axes = prop_def(NamesAttr)
    shift = prop_def(IntegerAttr.constr(i64))
    channel = prop_def(IntegerAttr.constr(i64))
    dtype = prop_def(StringAttr)
    num_bytes = prop_def(SizeAttr, prop_name="bytes")
    apart = flag_mark("apart")

    STREAM: ClassVar[str] = ""
    """What its stream is called behind that of the axes' collectives."""

    def __init__(self, *given: Any, axes: Sequence[str], **named: Any) -> None:
        super().__init__(*given, axes=axes, stream=f"{comm_stream(axes)}{self.STREAM}", **named)

    def action(self, numbers: NodeNumbers) -> NodeAction:
        return Transfer(
            self.node_name,
            self.axes.data,
            self.shift.value.data,
            numbers.num_bytes(self.num_bytes.data),
            self.channel.value.data,
            self.dtype.data,
        )

    def verify_(self) -> None:
        super().verify_()
        if not self.axes.data:
            raise self.mistake("a transfer is along some axis")
        verify_dtypes(self.name, self.dtype)


@op_definition
class SendOp(TransferOp):
    """Hand values over as one buffer, as soon as they are there. It ends without the receive."""

    name = "sched.send"

    values = var_operand_def()

    assembly_format = (
        "`(` $values `)` `to` $shift `over` $axes `channel` $channel `in` $dtype `bytes` $bytes "
        "`on` $stream (`in` $segment^)? (`memory` $memory^)? attr-dict `:` type($values)"
    )


@op_definition
class RecvOp(TransferOp):
    """Take values in. On a stream of its own: were it to wait for the rank's send, rings could deadlock."""

    name = "sched.recv"
    STREAM: ClassVar[str] = ".recv"

    outputs = var_result_def()

    assembly_format = (
        "`from` $shift `over` $axes `channel` $channel `in` $dtype `bytes` $bytes "
        "`on` $stream (`in` $segment^)? (`memory` $memory^)? attr-dict `:` type($outputs)"
    )


@op_definition
class ViewOp(MarkedOp):
    """The operand's memory under another type, whose shape has as many elements on the rank, or fewer where it is a part. It costs nothing, and is no node."""

    name = "sched.view"

    operand = operand_def()
    result = result_def()

    assembly_format = "$operand attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, result_type: Attribute) -> None:
        super().__init__([operand], [result_type])

    def verify_(self) -> None:
        for value in (self.operand, self.result):
            if not isinstance(value.type, ValueType):
                raise self.mistake(
                    f"a view is of a tensor, a shard or a stack, not of {value.type}"
                )


@op_definition
class TakenOp(DefaultBuilder, MarkedOp):
    """The gradient of a tied weight, of the weight's shape, that the `number`-th other stage of the rank which has it gives. It is no node."""

    name = "sched.taken"

    weight = prop_def(StringAttr)
    number = prop_def(IntegerAttr.constr(i64))
    value = result_def()

    assembly_format = "$weight $number attr-dict `:` type($value)"

    def verify_(self) -> None:
        verify_number(self.name, self.number.value.data)


@op_definition
class ScheduleOp(DefaultBuilder):
    """How the pipeline runs its microbatches: `sched.schedule "1f1b" ranks "pp" virtual 1 microbatches "mb"`.

    `ranks` and `microbatches` are numbers (sizes, so that they may be named), `virtual` is how many stages a rank has. The order of actions follows from these
    alone (`stagec.schedules`). Where transfers do not stand in it by the schedule's own rule, it says by which: `transfers "as_sent"`. Of a pipeline that
    several pools run it is one part: `ranks "pp" from 1 of 5` are those behind the first.
    """

    name = "sched.schedule"

    schedule = prop_def(StringAttr)
    ranks = prop_def(SizeAttr)
    virtual_stages = prop_def(IntegerAttr.constr(i64))
    microbatches = prop_def(SizeAttr)
    first = opt_prop_def(IntegerAttr.constr(i64))
    total = opt_prop_def(IntegerAttr.constr(i64))
    transfers = opt_prop_def(StringAttr)

    assembly_format = (
        "$schedule `ranks` $ranks (`from` $first^ `of` $total)? `virtual` $virtual_stages `microbatches` $microbatches "
        "(`transfers` $transfers^)? attr-dict"
    )

    def verify_(self) -> None:
        if (self.first is None) != (self.total is None):
            raise self.mistake("a part of a pipeline is of so many ranks in all")
        if self.part is not None and (
            not 0 <= self.part[0] < self.part[1] or self.virtual_stages.value.data != 1
        ):
            raise self.mistake("a part of a pipeline has ranks of it, with one stage each")

    @property
    def part(self) -> tuple[int, int] | None:
        """For one part of a pipeline: the place of its first rank, and how many ranks all parts have together."""
        if self.first is None or self.total is None:
            return None
        return self.first.value.data, self.total.value.data


def written_effects(effects: Effects) -> EffectsAttr | None:
    return None if effects == PLAIN else EffectsAttr(effects)


def effects_of(op: Operation) -> Effects:
    """What a node does with memory."""
    return op.memory_effects if isinstance(op, NodeOp) else PLAIN


def planned(op: Operation) -> NodeMemory | None:
    """The plan of a node's memory, if there is one."""
    return op.planned if isinstance(op, NodeOp) else None


def work_of(op: Operation) -> Work:
    """The kind of work that a node is; of communication and copies none in particular."""
    said = op.work if isinstance(op, ComputeOp) else None
    return Work.OTHER if said is None else said.data
