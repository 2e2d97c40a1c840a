"""What kernel an op of `sched` is, in sizes: what decides how fast it runs besides FLOPs and bytes.

It is read off the types of what the op reads and writes. A product of two tensors is `batch` products of [m, k] by [k, n]: dims that
both operands and the result have are its batch, those that both have and the result lacks are k. Linear layers of one input are one product
in frameworks that merge their weights (Megatron-LM's `linear_qkv` and gated `linear_fc1`, vLLM's `QKVParallelLinear`): `all_m` and `all_n` are its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from xdsl.ir import Block, Operation, OpResult, SSAValue

from stagec import symbolic
from stagec.analysis.contiguity import apart
from stagec.analysis.sizes import batch_dim, module_of
from stagec.dialects import sched, stg
from stagec.dialects.memory import Kind
from stagec.dialects.types import PIECE_AXIS, QUANTIZED, SCALES, TensorType, bytes_of, tensor_of
from stagec.dialects.use_def import StepBack, followed, from_body, from_stack, sent, viewed
from stagec.dialects.work import Work
from stagec.symbolic import ONE, ZERO, Size


@dataclass(frozen=True, slots=True)
class KernelForm:
    """A kind of kernel and its sizes, still as expressions."""

    kind: Work
    dtype: str
    sizes: tuple[tuple[str, Size], ...]
    requests: tuple[tuple[Size, Size, Size], ...] = ()
    """Of attention about several kinds of sequences in a row."""
    stored: str = ""
    """Of attention what keys and values, or latents, are read in; of a product the format of a weight that is stored quantized."""
    agreed: tuple[str, ...] = ()
    """Of a quantization, the axes of the ranks that gather its result."""
    behind: str = ""
    """Of a quantization, what made for it alone what it reads: a `norm`, or an `activation`."""


def kernel_form(op: sched.ComputeOp) -> KernelForm | None:
    """None for what moves memory more than it computes, and adds nothing to a sum over microbatches."""
    make = FORMS.get(sched.work_of(op))
    return None if make is None else make(op)


Forms = dict[sched.ComputeOp, KernelForm | None]
"""What is known of kernels, for all layers and ranks that run them."""


def known_form(op: sched.ComputeOp, known: Forms) -> KernelForm | None:
    if op not in known:
        known[op] = kernel_form(op)
    return known[op]


def read_before(op: sched.ComputeOp) -> float:
    """The share of an elementwise op's operands that elementwise ops in front of it read too, and that one kernel of all of them reads once.

    They are of the same dims, in one block, and nothing else comes between them: what another kind of op makes of the result of one is not read by the other.
    So the kernel of a gated activation's gradients reads each of its three operands once (`swiglu_back` in Megatron-LM's `fused_bias_swiglu.py`).
    """
    if sched.work_of(op) != Work.ELEMENTWISE or len(op.outputs) != 1:
        return 0.0
    dims = tensor_of(op.outputs[0].type).dims
    read = {(tensor.dims, tensor.dtype) for tensor in (tensor_of(v.type) for v in op.inputs)}
    if len(read) != 1 or read.pop()[0] != dims:
        return 0.0
    known = sum(
        any(
            other.parent == op.parent
            and other.is_before_in_block(op)
            and tensor_of(other.outputs[0].type).dims == dims
            and not reads_through_other(op, other)
            for other in elementwise_users(value)
            if other is not op
        )
        for value in op.inputs
    )
    return known / len(op.inputs)


ALIKE = (Work.ELEMENTWISE, Work.ROTATION)
"""Work that reads and writes elements at the same places, or beside them."""


def elementwise_users(value: SSAValue) -> Iterator[sched.ComputeOp]:
    """The elementwise ops that read a value, as it is or by another view that is the same."""
    alike = [value]
    view = value.owner
    if isinstance(view, sched.ViewOp):
        others = (use.operation for use in view.operand.uses)
        alike += [each.results[0] for each in others if is_same_view(each, view)]
    for each in alike:
        for use in each.uses:
            user = use.operation
            if isinstance(user, sched.ComputeOp) and sched.work_of(user) in ALIKE:
                yield user


def is_same_view(op: Operation, view: sched.ViewOp) -> bool:
    if op is view or not isinstance(op, sched.ViewOp):
        return False
    return op.results[0].type == view.results[0].type and op.properties == view.properties


def reads_through_other(op: Operation, first: Operation) -> bool:
    """Whether an op reads what something that is not elementwise makes of the result of an earlier op of its block."""
    seen: set[tuple[Operation, bool]] = set()
    left = [(op, False)]
    while left:
        reader, by_other = left.pop()
        for made in (value.owner for value in reader.operands):
            if made is first and by_other:
                return True
            if made is first or not isinstance(made, Operation) or made.parent != op.parent:
                continue
            if not first.is_before_in_block(made):
                continue
            is_alike = isinstance(made, sched.ViewOp) or (
                isinstance(made, sched.ComputeOp) and sched.work_of(made) in ALIKE
            )
            step = made, by_other or not is_alike
            if step not in seen:
                seen.add(step)
                left.append(step)
    return False


def table_form(op: sched.ComputeOp) -> KernelForm | None:
    """What is no product makes the gradient of a table, or adds those of all its uses: another kernel adds it to those of earlier microbatches. Or it copies
    gradients into the buffer that is reduced. Some kernels compute elements one by one.
    """
    one_by_one = {} if op.scalars is None else {"scalars": op.scalars.data}
    if stg.phase_of(op) == "grad_reduce":
        divided = symbolic.total(divided_bytes(made) for made in op.outputs)
        first = tensor_of(op.outputs[0].type).dtype
        return KernelForm(Work.OTHER, first, (("divided", divided),)) if divided != 0 else None
    sizes: dict[str, Size] = {}
    if len(op.outputs) == 1 and stg.phase_of(op) in ("bwd", "wgrad"):
        sizes = sum_sizes(op.outputs[0])
    if sizes:
        sizes["made"] = tensor_of(op.outputs[0].type).num_bytes
    sizes |= one_by_one | copied_sizes(op)
    if sched.work_of(op) == Work.ELEMENTWISE:
        sizes |= apart_sizes(op)
    if not sizes:
        return None
    return KernelForm(Work.OTHER, tensor_of(op.outputs[0].type).dtype, tuple(sizes.items()))


def cast_form(op: sched.ComputeOp) -> KernelForm | None:
    sizes = apart_sizes(op)
    if not sizes:
        return None
    return KernelForm(Work.OTHER, tensor_of(op.outputs[0].type).dtype, tuple(sizes.items()))


def apart_sizes(op: sched.ComputeOp) -> dict[str, Size]:
    """How many elements kernels of an eager framework compute one by one, `apart`, where they do."""
    found = apart(op)
    return {"apart": found} if found != ZERO else {}


def quantize_form(op: sched.ComputeOp) -> KernelForm:
    """Formats find their scales in different ways. `experts`: of how many experts' tokens, where products read these one by one. Of a weight, its
    `elements`, and the part of a microbatch of those that are quantized once in a step, `new`.
    """
    made = tensor_of(op.outputs[0].type)
    products = (
        user
        for user in (use.operation for use in op.outputs[0].uses)
        if isinstance(user, sched.ComputeOp) and sched.work_of(user) == Work.PRODUCT
    )
    own = {name for user in products if is_of_experts(user) for name in batch_names(user)}
    sizes = {"experts": dims_product(made, own)} if own else {}
    agreed = ()
    if is_weight(op.inputs[0]):
        elements = dims_product(made, set(made.names))
        sizes |= {"elements": elements, "new": elements / microbatches_around(op)}
    else:
        agreed = gathered_over(op.outputs[0])
    return KernelForm(
        Work.QUANTIZE,
        made.dtype,
        tuple(sizes.items()),
        agreed=agreed,
        behind=maker(op),
    )


def maker(op: sched.ComputeOp) -> str:
    """A `norm` if one made what a quantization reads, and an `activation` if elementwise ops made it of what linear layers made; nothing if others read it too.

    A norm whose result is wanted by itself is a module apart, and so is one in front of routers and experts (`return_layernorm_output` in Transformer
    Engine's `module/layernorm_linear.py`; `pre_mlp_layernorm` of Megatron-LM).
    """
    made = followed(op.inputs[0], viewed)
    source = made.owner
    if not isinstance(source, sched.ComputeOp):
        return ""
    if not all(sched.work_of(user) == Work.QUANTIZE for user in users_of(made)):
        return ""
    is_whole = tensor_of(made.type).dims == tensor_of(source.inputs[0].type).dims
    is_forward = stg.phase_of(source) in ("fwd", "recompute")
    if sched.work_of(source) == Work.REDUCTION and is_whole and is_forward:
        return "norm"
    return "activation" if is_activated(source) else ""


def is_activated(op: sched.ComputeOp) -> bool:
    """Whether elementwise ops alone lie between an op, the last of them, and products of linear layers, whose biases may be added."""
    left: list[Operation | Block] = [op]
    seen: set[Operation | Block] = set()
    is_linear_below = False
    while left:
        each = left.pop()
        if each in seen or isinstance(each, stg.WeightOp):
            continue
        seen.add(each)
        if not isinstance(each, sched.ComputeOp):
            return False
        work = sched.work_of(each)
        if work == Work.PRODUCT and is_linear(each) and each is not op:
            is_linear_below = True
        elif work in (Work.ELEMENTWISE, Work.CAST):
            left += [followed(value, viewed, from_stack, of_each).owner for value in each.inputs]
        else:
            return False
    return is_linear_below


def users_of(value: SSAValue) -> Iterator[Operation]:
    """The ops that read a value, as it is or a view of it."""
    for user in (use.operation for use in value.uses):
        if isinstance(user, sched.ViewOp):
            yield from users_of(user.results[0])
        else:
            yield user


def gathered_over(value: SSAValue) -> tuple[str, ...]:
    """The axes over which a value is gathered, whole or piece by piece; none if it is not."""
    for use in value.uses:
        user = use.operation
        found: tuple[str, ...] = ()
        if isinstance(user, sched.CollectiveOp) and user.kind.data == "all_gather":
            return user.axes.data
        if isinstance(user, sched.ViewOp):
            found = gathered_over(user.results[0])
        elif isinstance(user, stg.RepeatOp) and stg.STEPS in user.properties:
            found = gathered_over(user.body.block.args[use.index])
        if found:
            return found
    return ()


def batch_names(op: sched.ComputeOp) -> set[str]:
    """Dims that both operands of a product have, and its result."""
    left, right = (tensor_of(value.type) for value in op.inputs[:2])
    return set(left.names) & set(right.names) & set(tensor_of(op.outputs[0].type).names)


def product_form(op: sched.ComputeOp) -> KernelForm:
    left, right = (tensor_of(value.type) for value in op.inputs[:2])
    made = set(tensor_of(op.outputs[0].type).names)
    both = set(left.names) & set(right.names)
    sizes = {
        "batch": dims_product(left, batch_names(op)),
        "m": dims_product(left, set(left.names) - both),
        "n": dims_product(right, set(right.names) - both),
        "k": dims_product(left, both - made),
    }
    sizes |= {"all_m": sizes["m"], "all_n": sizes["n"]}
    sizes |= sum_sizes(op.outputs[0])
    if left.dtype in QUANTIZED and stg.phase_of(op) == "wgrad":
        sizes |= columnwise_sizes(op, both)
    if stg.phase_of(op) == "bwd" and left.dtype in QUANTIZED:
        sizes |= transposed_sizes(op)
    if left.dtype in SCALES:
        sizes |= late_sizes(op)
    if stg.phase_of(op) == "fwd":
        sizes |= regathered_sizes(op)
    sizes |= copied_sizes(op)
    if is_linear(op):
        sizes |= merged_sizes(op, both)
        if sizes["batch"] != ONE:
            sizes |= experts_sizes(op, sizes)
            sizes |= {"experts": sizes["batch"]} if is_of_experts(op) else {}
    return KernelForm(Work.PRODUCT, left.dtype, tuple(sizes.items()), stored=stored_weight(op))


SUMS = ("summed", "zeroed", "reduced", "converted")
"""The sizes of a kernel that adds its result to a sum over microbatches (`sum_sizes`)."""


def sum_sizes(value: SSAValue) -> dict[str, Size]:
    """The bytes of the sum over microbatches that a value is added to as it is, `summed`; of it, as it is set to zero once in a step, the part of a
    microbatch, `zeroed`; and the same again, `reduced`, where ranks add up their sums. Elements that are in another dtype than the sum are `converted`. Where
    there is no sum, or a reduction in between, the bytes that ranks add up are `divided`.
    """
    found = summed_by(value)
    if found is None:
        divided = divided_bytes(value)
        return {"divided": divided} if divided != 0 else {}
    total, dtype = found
    assert isinstance(total.op, stg.AccumulateOp)
    summed = bytes_of(tensor_of(value.type).num_elements, dtype)
    once = summed / symbolic.symbol(total.op.axis.data)
    reduced = {"reduced": once} if reduction_of(total) is not None else {}
    made = tensor_of(value.type)
    converted = {"converted": made.num_elements} if made.dtype != dtype else {}
    return {"summed": summed, "zeroed": once, **reduced, **converted}


def divided_bytes(value: SSAValue) -> Size:
    """The bytes of a gradient that ranks add up as it is made, in the dtype of the sum; 0 of other values."""
    found = reduction_of(value)
    if found is None:
        return symbolic.constant(0)
    return bytes_of(tensor_of(value.type).num_elements, found.dtype.data)


def reduction_of(value: SSAValue) -> sched.CollectiveOp | None:
    """What sums a gradient, or each of a stack, over ranks."""
    for use in value.uses:
        user = use.operation
        found = None
        if isinstance(user, sched.CollectiveOp) and stg.phase_of(user) == "grad_reduce":
            return user
        if isinstance(user, sched.ViewOp):
            found = reduction_of(user.results[0])
        elif isinstance(user, stg.RepeatOp):
            found = reduction_of(user.body.block.args[use.index])
        elif isinstance(user, stg.YieldOp):
            loop = user.parent_op()
            if isinstance(loop, stg.RepeatOp):
                found = reduction_of(loop.results[use.index])
        if found is not None:
            return found
    return None


def summed_by(value: SSAValue) -> tuple[OpResult, str] | None:
    """What comes out of the loop over microbatches that adds a value up as it is, and the dtype of the sum."""
    for use in value.uses:
        user = use.operation
        found = None
        if isinstance(user, sched.ViewOp):
            found = summed_by(user.results[0])
        elif isinstance(user, stg.YieldOp):
            loop = user.parent_op()
            assert loop is not None
            result = loop.results[use.index]
            if isinstance(loop, stg.AccumulateOp):
                found = result, tensor_of(result.type).dtype
            else:
                found = summed_by(result)
        if found is not None:
            return found
    return None


def columnwise_sizes(op: sched.ComputeOp, contracted: set[str]) -> dict[str, Size]:
    """Elements of quantized operands that a weight's gradient reads along columns, which the forward pass or the input's gradient read along rows.

    `whole` are those of operands that are quantized where they are read; of operands that are gathered, `shard` are those that a rank quantizes and
    `gathered` all. Products of one operand divide it among them.
    """
    nothing = symbolic.constant(0)
    sizes: dict[str, Size] = {"whole": nothing, "shard": nothing, "gathered": nothing}
    for position, operand in enumerate(op.inputs[:2]):
        users = {use.operation for use in operand.uses}
        sharing = sum(
            isinstance(user, sched.ComputeOp) and is_beside(user, op, position, contracted)
            for user in users
        )
        share = symbolic.constant(Fraction(1, max(sharing, 1)))
        gather = gather_behind(operand)
        if gather is None:
            sizes["whole"] += tensor_of(operand.type).num_elements * share
        else:
            shard = tensor_of(gather.type)
            sizes["shard"] += dims_product(shard, set(shard.names)) * share
            sizes["gathered"] += tensor_of(operand.type).num_elements * share
    return sizes


def late_sizes(op: sched.ComputeOp) -> dict[str, Size]:
    """Of each operand, 1 if it is a weight or gathered: then its scales are stored, or sent, in the order of its rows, and not in that of products."""
    late = (is_weight(value) or gather_behind(value) is not None for value in op.inputs[:2])
    names = ("late_left", "late_right")
    return {
        name: symbolic.constant(int(is_late)) for name, is_late in zip(names, late, strict=True)
    }


def transposed_sizes(op: sched.ComputeOp) -> dict[str, Size]:
    """Elements of a weight with one scale that is stored in 8 bits, of which the gradient of its layer's input reads the columns.

    `updated`: of one that learns, the part of a microbatch of those that are new in a step.
    """
    for operand in op.inputs[:2]:
        weight, dtype = weight_behind(operand), tensor_of(operand.type).dtype
        if weight is None or dtype in SCALES:
            continue
        if tensor_of(weight.results[0].type).dtype == dtype:
            elements = tensor_of(operand.type).num_elements
            learns = int(weight.frozen is None)
            return {"transposed": elements, "updated": elements * learns / microbatches_around(op)}
    return {}


def regathered_sizes(op: sched.ComputeOp) -> dict[str, Size]:
    """Of a weight that is gathered wide and quantized behind that, its elements, `regathered`, and `filled`, the part of a microbatch of those that are new in
    a step; the bytes of both as they are gathered.
    """
    for operand in op.inputs[:2]:
        weight = weight_behind(operand)
        if weight is not None and weight.gathered is not None:
            elements = tensor_of(operand.type).num_elements
            wide = bytes_of(elements, weight.gathered.data)
            parts = {"regathered": elements, "wide": wide}
            number = microbatches_around(op)
            return parts | {"filled": elements / number, "wide_filled": wide / number}
    return {}


def copied_sizes(op: sched.ComputeOp) -> dict[str, Size]:
    """The bytes of parameters that one gather made, `copied`, where the op is the first to multiply by one of them, or to look one up: what copies them into
    place has to be done before. Norms and biases are read before it, and are copied with the others.
    """
    gathers = dict.fromkeys(map(parameter_gather, op.inputs))
    made = [
        tensor_of(result.type).num_bytes
        for gather in gathers
        if gather is not None and first_reader(gather) is op
        for result in gather.results
    ]
    return {"copied": symbolic.total(made)} if made else {}


def parameter_gather(value: SSAValue) -> sched.CollectiveOp | None:
    """What gathered the parameter that a value is, in the dtype that its reader wants."""
    op = followed(value, viewed, KEEPS_VALUES).owner
    if not isinstance(op, sched.CollectiveOp) or op.kind.data != "all_gather":
        return None
    return op if sched.effects_of(op).makes == Kind.GATHERED else None


def first_reader(gather: sched.CollectiveOp) -> sched.ComputeOp | None:
    """The first op of its block that multiplies by what it gathered, or looks it up."""
    found: sched.ComputeOp | None = None
    for user in (user for result in gather.results for user in kept_users(result)):
        is_one = user.parent == gather.parent and sched.work_of(user) in (Work.PRODUCT, Work.OTHER)
        if not isinstance(user, sched.ComputeOp) or not is_one:
            continue
        if found is None or user.is_before_in_block(found):
            found = user
    return found


def kept_users(value: SSAValue) -> Iterator[Operation]:
    """The ops that read a value, a view of it, or the same in another dtype."""
    for user in users_of(value):
        if isinstance(user, sched.ComputeOp) and sched.work_of(user).keeps_values:
            yield from kept_users(user.outputs[0])
        else:
            yield user


def microbatches_around(op: sched.ComputeOp) -> Size:
    """How many times the loop over microbatches runs that an op is in."""
    outer = op.parent_op()
    while outer is not None and not isinstance(outer, stg.AccumulateOp):
        outer = outer.parent_op()
    return ONE if outer is None else symbolic.symbol(outer.axis.data)


def gather_behind(value: SSAValue) -> SSAValue | None:
    """What a value was gathered from."""
    return sent(followed(value, viewed, of_pieces))


def of_pieces(value: SSAValue) -> SSAValue | None:
    """From what a loop over pieces hands out to a piece."""
    op = value.owner
    is_loop = isinstance(op, stg.RepeatOp) and stg.STEPS in op.properties
    return from_body(value) if is_loop else None


def is_of_experts(op: sched.ComputeOp) -> bool:
    """Whether a product is of a matrix for each of its batch, and of tokens that are of no sample of the step: a dispatch dealt them to experts.

    Where each head has a matrix, tokens are still of their samples, and one kernel multiplies all.
    """
    if not is_linear(op) or not batch_names(op):
        return False
    samples = batch_dim(module_of(op))
    return not any(samples in tensor_of(value.type).names for value in op.inputs[:2])


def experts_sizes(op: sched.ComputeOp, sizes: Mapping[str, Size]) -> dict[str, Size]:
    """The sizes of a product over all experts of a device: `hidden` and `inner`, and how many products lead into them (two if they are gated).

    Those that read what a dispatch sent lead in, the others out. Nothing where no dispatch feeds such products.
    """
    block = op.parent
    assert block is not None
    batch = [
        name
        for name in tensor_of(op.inputs[1].type).names
        if name in tensor_of(op.inputs[0].type).names
    ]
    leading = [
        each
        for each in block.ops
        if isinstance(each, sched.ComputeOp)
        and sched.work_of(each) == Work.PRODUCT
        and stg.phase_of(each) == stg.phase_of(op)
        and dispatched_by(each.inputs[0]) is not None
        and set(batch) & set(tensor_of(each.inputs[0].type).names)
    ]
    if not leading:
        return {}
    wide, narrow = (sizes["k"], sizes["n"]) if op in leading else (sizes["n"], sizes["k"])
    sent, places = filled(leading[0].inputs[0])
    return {
        "hidden": wide,
        "inner": narrow,
        "leading": symbolic.constant(len(leading)),
        "sent": sent,
        "places": places,
    }


def filled(value: SSAValue) -> tuple[Size, Size]:
    """How many of the places that experts have for tokens are taken: the number of copies of tokens, and that of places, on all devices together."""
    dispatch = dispatched_by(value)
    assert dispatch is not None
    routed, chosen = tensor_of(dispatch.outputs[0].type), tensor_of(dispatch.inputs[1].type)
    sent = symbolic.product(symbolic.symbol(dim.name) for dim in chosen.dims)
    return sent, symbolic.product(symbolic.symbol(dim.name) for dim in routed.dims[:2])


def dispatched_by(value: SSAValue) -> sched.ComputeOp | None:
    """The dispatch that sends a value to experts, perhaps over the network, in part, or in another dtype."""
    made = followed(value, viewed, sent, of_work(Work.CAST, Work.SLICE)).owner
    if isinstance(made, sched.ComputeOp) and sched.work_of(made) == Work.DISPATCH:
        return made
    return None


def of_work(*kinds: Work) -> StepBack:
    """From what a kernel of some kind makes to what it reads first."""

    def before(value: SSAValue) -> SSAValue | None:
        op = value.owner
        if isinstance(op, sched.ComputeOp) and sched.work_of(op) in kinds:
            return op.inputs[0]
        return None

    return before


KEEPS_VALUES = of_work(*(work for work in Work if work.keeps_values))


def is_linear(op: sched.ComputeOp) -> bool:
    """Whether a product is a linear layer's, forward or for a gradient."""
    return stg.phase_of(op) == "wgrad" or any(is_weight(v) for v in op.inputs[:2])


def stored_weight(op: sched.ComputeOp) -> str:
    """The format of a weight that a product reads as it is stored, quantized; nothing of others."""
    found = (tensor_of(value.type).dtype for value in op.inputs[:2] if is_weight(value))
    return next((dtype for dtype in found if dtype in QUANTIZED), "")


def merged_sizes(op: sched.ComputeOp, contracted: set[str]) -> dict[str, Size]:
    """`all_m` or `all_n`: of all linear layers that have an input in common, over the same dims and in the same phase."""
    best: dict[str, Size] = {}
    most = 1
    for position, grown in ((0, "all_n"), (1, "all_m")):
        shared = op.inputs[position]
        if is_weight(shared):
            continue
        others = [
            user.inputs[1 - position]
            for user in (use.operation for use in shared.uses)
            if isinstance(user, sched.ComputeOp) and is_beside(user, op, position, contracted)
        ]
        if len(others) > most:
            most = len(others)
            free = (tensor_of(v.type) for v in others)
            best = {grown: symbolic.total(dims_product(t, set(t.names) - contracted) for t in free)}
    return best


def is_beside(
    user: sched.ComputeOp, op: sched.ComputeOp, position: int, contracted: set[str]
) -> bool:
    """Whether another product could be one with this: of the same input, over the same dims, by a matrix of its own in the same format."""
    if user is op:
        return True
    if sched.work_of(user) != Work.PRODUCT or user.parent != op.parent:
        return False
    if stg.phase_of(user) != stg.phase_of(op):
        return False
    left, right = (set(tensor_of(value.type).names) for value in user.inputs[:2])
    if left & right != contracted or user.inputs[position] is not op.inputs[position]:
        return False
    return is_linear(user) and stored_weight(user) == stored_weight(op)


def attention_form(op: sched.ComputeOp) -> KernelForm:
    """Queries are [..., queries, heads, width], keys [..., keys, kv heads, width]; of a gradient its first operand is that of the output."""
    work = sched.work_of(op)
    grad = work == Work.ATTENTION_GRAD
    q, k, v = (tensor_of(value.type) for value in op.inputs[grad : 3 + grad])
    sizes = {
        "batch": symbolic.product(d.size for d in q.dims[:-3]),
        "seq": q.dims[-3].size,
        "keys": k.dims[-3].size,
        "heads": q.dims[-2].size,
        "kv_heads": k.dims[-2].size,
        "head_dim": q.dims[-1].size,
        "value_dim": v.dims[-1].size,
    }
    if op.window is not None:
        sizes["reach"] = op.window.data
    return KernelForm(work, q.dtype, tuple(sizes.items()), requests=requests_of(op), stored=k.dtype)


def latent_form(op: sched.ComputeOp) -> KernelForm:
    """Queries are [..., queries, heads, latent], latents [..., positions, latent]."""
    near, far, latents = (tensor_of(value.type) for value in op.inputs[:3])
    sizes = {
        "batch": symbolic.product(d.size for d in near.dims[:-3]),
        "seq": near.dims[-3].size,
        "keys": latents.dims[-2].size,
        "heads": near.dims[-2].size,
        "latent": near.dims[-1].size,
        "rotary": far.dims[-1].size,
    }
    return KernelForm(
        Work.LATENT_ATTENTION,
        near.dtype,
        tuple(sizes.items()),
        requests=requests_of(op),
        stored=latents.dtype,
    )


def delta_form(op: sched.ComputeOp) -> KernelForm:
    """Keys are [..., positions, key heads, width], values [..., positions, heads, width]; of a gradient its first operand is that of the result."""
    work = sched.work_of(op)
    grad = work == Work.DELTA_RULE_GRAD
    k, v = (tensor_of(value.type) for value in op.inputs[1 + grad : 3 + grad])
    sizes = {
        "batch": symbolic.product(d.size for d in v.dims[:-3]),
        "seq": v.dims[-3].size,
        "key_heads": k.dims[-2].size,
        "heads": v.dims[-2].size,
        "key_width": k.dims[-1].size,
        "width": v.dims[-1].size,
    }
    if len(op.inputs) > 5 and not grad:
        kept = tensor_of(op.inputs[5].type)
        sizes["state_bytes"] = kept.num_bytes / kept.num_elements
    return KernelForm(work, v.dtype, tuple(sizes.items()), requests=requests_of(op))


def scan_form(op: sched.ComputeOp) -> KernelForm:
    return KernelForm(sched.work_of(op), tensor_of(op.outputs[0].type).dtype, ())


def convolution_form(op: sched.ComputeOp) -> KernelForm:
    """The product that a patch embedding or a gradient of one is, as patches do not overlap: what it makes is [m, n], and k is summed over. Another kernel adds
    the gradient of a kernel to those of earlier microbatches.

    Patches are [..., patches, width], kernels [channels, rows, columns, width], images end in columns.
    """
    left, right = (tensor_of(value.type) for value in op.inputs[:2])
    made = tensor_of(op.outputs[0].type)
    *rows, width = left.dims
    *pixels, last = right.dims
    if made.names[-1] == last.name:
        sizes = made.dims[:-1], [last], pixels
    elif made.names[-1] == width.name:
        sizes = [width], made.dims[:-1], rows
    else:
        sizes = rows, pixels, [width]
    m, n, k = (symbolic.product(dim.size for dim in each) for each in sizes)
    named = {"batch": ONE, "m": m, "n": n, "k": k}
    if stg.phase_of(op) == "wgrad":
        named |= sum_sizes(op.outputs[0]) | {"made": made.num_bytes}
    return KernelForm(Work.CONVOLUTION, left.dtype, tuple((named | copied_sizes(op)).items()))


def requests_of(op: sched.ComputeOp) -> tuple[tuple[Size, Size, Size], ...]:
    return op.requests.data if op.requests is not None else ()


def orthogonalization_form(op: sched.ComputeOp) -> KernelForm:
    return KernelForm(Work.ORTHOGONALIZATION, tensor_of(op.inputs[0].type).dtype, ())


def preconditioning_form(op: sched.ComputeOp) -> KernelForm:
    return KernelForm(Work.PRECONDITIONING, tensor_of(op.outputs[0].type).dtype, ())


FORMS: Mapping[Work, Callable[[sched.ComputeOp], KernelForm | None]] = {
    Work.OTHER: table_form,
    Work.ELEMENTWISE: table_form,
    Work.ROTATION: table_form,
    Work.CAST: cast_form,
    Work.QUANTIZE: quantize_form,
    Work.PRODUCT: product_form,
    Work.CONVOLUTION: convolution_form,
    Work.ATTENTION: attention_form,
    Work.ATTENTION_GRAD: attention_form,
    Work.LATENT_ATTENTION: latent_form,
    Work.SCAN: scan_form,
    Work.SCAN_GRAD: scan_form,
    Work.DELTA_RULE: delta_form,
    Work.DELTA_RULE_GRAD: delta_form,
    Work.ORTHOGONALIZATION: orthogonalization_form,
    Work.PRECONDITIONING: preconditioning_form,
}
"""The forms of the kinds of work whose time depends on more than FLOPs and bytes."""


def dims_product(tensor: TensorType, names: set[str]) -> Size:
    """The product of the sizes of some dims. A piece counts as many as the whole, as pieces take their share of the time of the whole."""
    found = ONE
    for dim in tensor.dims:
        if dim.name in names:
            found = found * dim.size
            if PIECE_AXIS in dim.split:
                found = found * symbolic.symbol(PIECE_AXIS)
    return found


def is_weight(value: SSAValue) -> bool:
    return weight_behind(value) is not None


def weight_behind(value: SSAValue) -> stg.WeightOp | None:
    """The weight that a value is, perhaps gathered or cast: followed through views, collectives, casts and stacks."""
    made = followed(value, from_stack, viewed, sent, KEEPS_VALUES, of_each).owner
    return made if isinstance(made, stg.WeightOp) else None


def of_each(value: SSAValue) -> SSAValue | None:
    """From what is gathered layer by layer, and kept, to that of a layer."""
    if isinstance(value, OpResult) and isinstance(value.op, stg.RepeatOp):
        return from_body(value) if value.index >= value.op.num_carried else None
    return None
