"""What a process keeps beside the tensors of its program, as terms of the plan of memory.

`context`, `workspace`, `reserve` and `communicator` are bytes that the plan says: of the CUDA context and loaded kernels; of libraries, as the
workspaces of cuBLAS; of what the caching allocator has beyond its peak; of each communicator, one for each set of ranks that a rank talks to.

`dummy_gradients` are those of Transformer Engine (`get_dummy_wgrad` in `module/base.py`): where weight gradients are added to Megatron-LM's buffers
by the product itself, autograd is handed a tensor that nobody reads. It is kept for good, one for each shape and dtype of a weight, and a microbatch has no
gradient of that weight beside it (`out=main_grad` in `module/linear.py`). Linear layers of one input have one weight (`linear_qkv`, `linear_fc1`); experts
have weights of the same shape. Tables and heads are no layers of Transformer Engine.

Transposed weights are Transformer Engine's too: a gradient of an input sums over the rows of a weight, its forward product over the columns. fp8
products of Hopper read along rows alone, and formats with a scale for each block have other scales along the other dim, so a quantized weight stays a second
time (`_transpose` of `Float8Tensor`, `_columnwise_data` of `MXFP8Tensor`; "Performance Considerations": handling transposes). They are of single weights, and
have a kind of their own.

Cached weights are what Transformer Engine makes of weights that are stored wide: the quantized copy that the first microbatch of a step makes stays in the
module for the others, and is written over in the next step (`_fp8_workspaces` in `module/base.py`; Megatron-LM says which microbatch is the first, unless
`disable_parameter_transpose_cache`). Its transposed copy stays with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from stagec import symbolic
from stagec.analysis.kernels import dims_product, weight_behind
from stagec.analysis.sizes import mesh_of
from stagec.dialects import sched, stg
from stagec.dialects.interfaces import spread
from stagec.dialects.memory import Kind, Stored
from stagec.dialects.op import around
from stagec.dialects.types import (
    ALL_POOLS,
    QUANTIZED,
    TensorType,
    bytes_of,
    tensor_of,
    with_form_of,
)
from stagec.dialects.work import Work
from stagec.symbolic import Size


@dataclass(frozen=True)
class ProcessTerms:
    """What a plan says of it, in bytes."""

    dummy_gradients: bool = False
    workspace: int = 0
    context: int = 0
    communicator: int = 0
    reserve: int = 0


@dataclass(frozen=True)
class LinearLayer:
    """Linear layers of one input, over the same dims: in frameworks they have one weight."""

    given: SSAValue
    summed: frozenset[str]
    batch: frozenset[str]
    """Dims along which there are weights of one shape: experts."""
    dtype: str


def process_rows(
    program: stg.ProgramOp, terms: ProcessTerms, trained: Iterable[str]
) -> Iterator[Stored]:
    """A row for each term that is not zero. `trained` are the paths of weights that have gradients."""
    numbers = {name: getattr(terms, name) for name in ("context", "workspace", "reserve")}
    if terms.communicator:
        over = (", ".join(axes) for axes in communicators(program))
        numbers |= {f"communicator over {axes}": terms.communicator for axes in over}
    for name, size in numbers.items():
        if size:
            yield Stored(name, Kind.PROCESS, symbolic.constant(size))
    if terms.dummy_gradients:
        for rows, columns, dtype in dict.fromkeys(linear_shapes(program, {*trained})):
            size = bytes_of(rows * columns, dtype)
            yield Stored(f"dummy gradient [{rows}, {columns}] {dtype}", Kind.PROCESS, size)


def copy_rows(program: stg.ProgramOp, *, cached: bool, transposed: bool) -> Iterator[Stored]:
    """Copies of weights: quantized ones of those that are stored wide (`cached`), and `transposed` ones of those that a product of the backward pass reads and
    that are stored quantized, or cached."""
    forms: dict[Operation, TensorType] = {}
    read_back: dict[Operation, TensorType] = {}
    for op in program.walk():
        if not isinstance(op, sched.ComputeOp) or sched.work_of(op) != Work.PRODUCT:
            continue
        for value in op.inputs[:2]:
            form = tensor_of(value.type)
            weight = weight_behind(value) or (weight_quantized(value) if cached else None)
            if weight is None or form.dtype not in QUANTIZED:
                continue
            if stg.phase_of(op) in ("fwd", "recompute"):
                forms[weight] = form
            else:
                read_back[weight] = blocks_of_product(op, form)
    for op in program.body.block.ops:
        if not isinstance(op, stg.WeightOp):
            continue
        if cached and op in forms and tensor_of(op.weight.type).dtype not in QUANTIZED:
            size = with_form_of(op.weight.type, forms[op]).num_bytes
            yield Stored(f"quantized copy of {op.path.data}", Kind.PROCESS, size)
        if transposed and op in read_back:
            size = with_form_of(op.weight.type, read_back[op]).num_bytes
            yield Stored(op.path.data, Kind.TRANSPOSED, size)


def blocks_of_product(op: sched.ComputeOp, read: TensorType) -> TensorType:
    """What a product reads, with blocks along the dims that it sums over: a transposed copy has scales of its own."""
    left, right = ({*tensor_of(value.type).names} for value in op.inputs[:2])
    made = {*tensor_of(op.outputs[0].type).names}
    return read.quantized(read.dtype, (left & right) - made, left & right & made)


def weight_quantized(value: SSAValue) -> stg.WeightOp | None:
    """The weight that a value is a quantized copy of."""
    made = value.owner
    if isinstance(made, sched.ComputeOp) and sched.work_of(made) == Work.QUANTIZE:
        return weight_behind(made.inputs[0])
    return None


def communicators(program: stg.ProgramOp) -> list[tuple[str, ...]]:
    """The axes of each: a collective's, and a transfer's."""
    module = program.parent_op()
    assert isinstance(module, ModuleOp)
    mesh = mesh_of(module)
    found: dict[tuple[str, ...], None] = {}
    for op in program.walk():
        if isinstance(op, sched.CollectiveOp | sched.SendOp | sched.RecvOp):
            axes = tuple(a for a in op.axes.data if a == ALL_POOLS) or tuple(
                spread(op.axes.data, mesh)
            )
            if axes:
                found[axes] = None
    return list(found)


def linear_shapes(program: stg.ProgramOp, trained: set[str]) -> Iterator[tuple[Size, Size, str]]:
    """Rows, columns and dtype of the weight of each linear layer of repeated blocks: outputs and inputs on one device."""
    layers: dict[LinearLayer, list[SSAValue]] = {}
    for op in program.walk():
        if not isinstance(op, sched.ComputeOp) or sched.work_of(op) != Work.PRODUCT:
            continue
        if stg.phase_of(op) != "fwd" or not is_repeated(op):
            continue
        left, right = op.inputs[:2]
        for weight, given in ((left, right), (right, left)):
            found = weight_behind(weight)
            if found is not None and found.path.data in trained:
                layers.setdefault(layer_of(op, weight, given), []).append(weight)
    for layer, weights in layers.items():
        tensors = [tensor_of(weight.type) for weight in weights]
        outputs = symbolic.total(
            dims_product(each, {*each.names} - layer.summed - layer.batch) for each in tensors
        )
        yield outputs, dims_product(tensors[0], {*layer.summed}), layer.dtype


def layer_of(op: sched.ComputeOp, weight: SSAValue, given: SSAValue) -> LinearLayer:
    both = {*tensor_of(weight.type).names} & {*tensor_of(given.type).names}
    made = tensor_of(op.outputs[0].type)
    summed, batch = frozenset(both - {*made.names}), frozenset(both & {*made.names})
    return LinearLayer(given, summed, batch, made.dtype)


def makes_dummy(op: Operation) -> bool:
    """Whether it is a product that makes the gradient of a linear layer's weight, of which autograd may be handed a dummy."""
    is_product = isinstance(op, sched.ComputeOp) and sched.work_of(op) == Work.PRODUCT
    return is_product and stg.phase_of(op) == "wgrad" and is_repeated(op)


def is_repeated(op: Operation) -> bool:
    """Whether it is in a repeat of layers."""
    return any(isinstance(each, stg.RepeatOp) for each in around(op))
