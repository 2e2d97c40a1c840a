"""The optimizer's step over all parameters of a device, as one fused (multi-tensor) kernel, and what Muon computes for it of matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)

from stagec import symbolic
from stagec.dialects import sched
from stagec.dialects.attributes import NamesAttr
from stagec.dialects.interfaces import Bytes, CostInterface, all_bytes, elements, num_bytes
from stagec.dialects.marks import flag_mark
from stagec.dialects.memory import Effects, Kind, Overwrite, Update
from stagec.dialects.op import DefaultBuilder, op_definition, shared_properties
from stagec.dialects.stg.matrices import Matrix, MatrixAttr, verify_matrix
from stagec.dialects.stg.preconditioning import (
    PRECONDITIONED,
    SHAMPOO,
    SOAP,
    Blocks,
    PreconditionerAttr,
    factor_bytes,
)
from stagec.dialects.types import (
    DTYPE_BITS,
    ShardType,
    StackType,
    TensorType,
    ValueType,
    bytes_of,
    leaf_of,
    tensor_of,
    verify_dtypes,
    with_dtype,
)
from stagec.dialects.work import Work
from stagec.symbolic import ONE, ZERO, Size

MUON = "muon"
NUM_STATES = {
    **{"sgd": 0, "sgd_momentum": 1, "adagrad": 1, "adam": 2, "adamw": 2, "lion": 1, "adafactor": 0},
    MUON: 1,
    SHAMPOO: 1,
    SOAP: 2,
}
"""State tensors as large as the parameter: momentum (Lion: Chen et al., arXiv:2302.06675; Muon: Liu et al., arXiv:2502.16982); first and second
moment (Kingma and Ba 2015), or a sum of squares (Duchi et al. 2011), of SOAP the second one in the eigenbasis. Factors of matrices are more."""

UPDATE_FLOPS = {
    **{
        "sgd": 2,
        "sgd_momentum": 4,
        "adagrad": 7,
        "adam": 12,
        "adamw": 14,
        "lion": 10,
        "adafactor": 10,
    },
    MUON: 3,
    SHAMPOO: 3,
    SOAP: 3,
}
"""Operations per parameter of the update's formulas (Kingma and Ba 2015; Loshchilov and Hutter 2019; arXiv:2302.06675, algorithm 2;
arXiv:1804.04235, algorithm 4). Of Muon, Shampoo and SOAP: decay, scale, subtract; the rest is `stg.momentum` and
`stg.orthogonalize`, or `stg.precondition`."""

FACTORED = "adafactor"
OF_MATRICES = (MUON, FACTORED, *PRECONDITIONED)
"""The optimizers for which it is stated which matrix each weight is."""

ORTHOGONALIZED = "bf16"
"""The dtype in which Newton-Schulz iterations run, and momenta travel (arXiv:2502.16982, section 2.3)."""

EIGHT_BIT = "fp8_1x256"
"""Of moments in 8 bits: blocks of 256 elements have a scale (bitsandbytes)."""

SMALL = symbolic.constant(4096)
"""Tensors with fewer elements keep moments in 32 bits (`min_8bit_size` in bitsandbytes' `optim/optimizer.py`; `_new_buffer` in torchao's `optim/adam.py`,
which counts the elements of a rank's own shard)."""

EMA_FLOPS = 3
"""`e = d e + (1 - d) w`."""


def state_bytes(algorithm: str, dtype: str, weight: SSAValue, matrix: Matrix | None) -> Size:
    """Bytes of what an optimizer keeps of a parameter, but for copies of it."""
    if algorithm == FACTORED:
        assert matrix is not None
        return bytes_of(sums_kept(weight.type, matrix), dtype)
    kept = bytes_of(elements(weight), dtype)
    if dtype == EIGHT_BIT:
        kept += is_small(weight) * (bytes_of(elements(weight), "fp32") - kept)
    return kept * NUM_STATES[algorithm]


def is_small(weight: SSAValue) -> Size:
    """One if what a device stores of a tensor is fewer than `SMALL` elements, else 0. Parts of a flat buffer are one tensor, and not small."""
    leaf = leaf_of(weight.type)
    assert isinstance(leaf, ValueType)
    is_matrix = len(tensor_of(leaf).dims) > 1
    if is_matrix and is_of_flat_buffer(leaf):
        return ZERO
    return ONE - symbolic.call("min", ONE, symbolic.call("floordiv", leaf.num_elements, SMALL))


def is_of_flat_buffer(leaf: Attribute) -> bool:
    return isinstance(leaf, ShardType) and leaf.rows >= len(tensor_of(leaf).dims)


def sums_kept(stored: Attribute, matrix: Matrix) -> Size:
    """How many sums Adafactor keeps of squared gradients: over the rows and over the columns of each matrix; of a vector all are kept
    (Shazeer and Stern, arXiv:1804.04235, algorithm 4).

    A part of a flat buffer is a vector. Of what is split by rows a device has those of its columns, which modules store first, or of its matrices.
    """
    assert isinstance(stored, ValueType)
    layers = stored.total_count if isinstance(stored, StackType) else ONE
    leaf, dims = leaf_of(stored), tensor_of(stored).dims
    if is_of_flat_buffer(leaf) or not matrix.columns:
        return stored.num_elements
    rows = symbolic.product(d.size for d in dims if d.name in matrix.rows)
    columns = symbolic.product(d.size for d in dims if d.name in matrix.columns)
    others = [d.size for d in dims if d.name not in (*matrix.rows, *matrix.columns)]
    count = symbolic.product(others)
    if isinstance(leaf, ShardType):
        ranks = symbolic.product(map(symbolic.symbol, leaf.axes))
        columns = columns if others else symbolic.ceildiv(columns, ranks)
        count = symbolic.ceildiv(count, ranks) if others else count
    return layers * count * (rows + columns)


@op_definition
class OptimizerStepOp(DefaultBuilder, CostInterface):
    """Update each weight from its gradient: `stg.optimizer_step "adamw" (%w, ...) from (%g, ...)`.

    `states` is the dtype of the moments; `master` that of the copy that is updated when
    the weights themselves are narrower (Micikevicius et al. 2018). What it keeps is implied; where that comes from
    the host, it stands behind `with`, and comes out updated in place, to be stored. `average` is the dtype of a moving average of the weights, if
    one is kept. Gradients are `scaled by` a number, where they are clipped or their loss was scaled: what finds it out has that cost.
    Of `muon`, `matrices` says of each weight what matrix it is; what is none is updated as by `adamw`, with its two moments. The step reads
    gradients of matrices until `orthogonalize-updates` has made what is subtracted of them. Of `shampoo` and `soap` every weight is one, or a vector, and
    `factors` says how they are cut into blocks: the step reads gradients until `precondition-updates` has made what is subtracted.

    Weights and gradients [D, F] each, or shards of them. FLOPs: for each element those of `UPDATE_FLOPS`. An average is a kernel of its own, which reads
    the new weights once more (`torch.optim.swa_utils.AveragedModel`).
    """

    name = "stg.optimizer_step"

    algorithm = prop_def(StringAttr)
    states = prop_def(StringAttr)
    master = opt_prop_def(StringAttr)
    average = opt_prop_def(StringAttr)
    matrices = opt_prop_def(ArrayAttr[MatrixAttr])
    factors = opt_prop_def(PreconditionerAttr)
    on_host = flag_mark("on_host")
    """The CPU of the host computes it: gradients and all that is kept are there, the new weights among that, before states."""
    copies = flag_mark("copies")
    """Kernels of their own copy gradients that are narrower than fp32 to that before the step, and master weights to what is stored behind it."""
    scales = flag_mark("scales")
    """It scales gradients itself, in a pass before the update: one operation for each element, which is read and written."""
    weights = var_operand_def()
    gradients = var_operand_def()
    scale = opt_operand_def()
    kept = var_operand_def()
    updated = var_result_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$algorithm `states` $states (`master` $master^)? (`average` $average^)? (`matrices` $matrices^)? (`factors` $factors^)? "
        "`(` $weights `)` `from` `(` $gradients `)` (`scaled` `by` $scale^ `:` type($scale))? (`with` `(` $kept^ `)`)? attr-dict "
        "`:` type($weights) `from` type($gradients) (`with` type($kept)^ `->` type($updated))?"
    )

    def made(self) -> Sequence[Attribute]:
        return [value.type for value in self.kept]

    def of(
        self,
        weights: Sequence[SSAValue],
        gradients: Sequence[SSAValue],
        kept: Sequence[SSAValue] = (),
        scale: SSAValue | None = None,
        chosen: Sequence[int] | None = None,
    ) -> OptimizerStepOp:
        """The same step of other values; of some of its weights only, `chosen` by number. It reads what this one is scaled by, unless that is given."""
        said = shared_properties(self, OptimizerStepOp)
        if self.matrices is not None and chosen is not None:
            said["matrices"] = ArrayAttr([self.matrices.data[number] for number in chosen])
        scale = self.scale if scale is None else scale
        return OptimizerStepOp(weights, gradients, scale, kept, **said)

    def verify_(self) -> None:
        if self.algorithm.data not in NUM_STATES:
            raise self.mistake(f"`{self.algorithm.data}` is not an optimizer")
        verify_dtypes(self.name, self.states, self.master, self.average)
        if len(self.weights) != len(self.gradients):
            raise self.mistake("one gradient per weight")
        if [v.type for v in self.kept] != [v.type for v in self.updated]:
            raise self.mistake("what is kept comes out with its type")
        if (self.algorithm.data in OF_MATRICES) != (self.matrices is not None):
            known = ", ".join(f"`{name}`" for name in OF_MATRICES)
            raise self.mistake(f"{known}, and no other, have matrices")
        has_factors = self.algorithm.data in PRECONDITIONED
        vectors = self.algorithm.data != MUON
        if has_factors != (self.factors is not None):
            known = ", ".join(f"`{name}`" for name in PRECONDITIONED)
            raise self.mistake(f"{known}, and no other, have factors")
        if self.matrices is not None:
            if len(self.matrices.data) != len(self.weights):
                raise self.mistake("one matrix per weight")
            for each, weight in zip(self.matrices.data, self.weights, strict=True):
                verify_matrix(self.name, each.data, weight, vectors)
                if has_factors and not each.data.rows:
                    raise self.mistake(f"{weight.type} has no rows")
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            if tensor_of(weight.type).names != tensor_of(gradient.type).names:
                raise self.mistake(f"{gradient.type} for {weight.type}")

    def effects(self) -> Effects:
        master = self.master.data if self.master is not None else None
        first = len(self.operands) - len(self.kept)
        overwrites = (Overwrite(first + number, number) for number in range(len(self.kept)))
        return Effects(
            tuple(overwrites),
            updates=Update(tuple(self.kept_bytes(*each) for each in self.updated_by()), master),
            makes=Kind.HOST if self.on_host else None,
        )

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        if not self.on_host:
            return super().lowered(mesh)
        moved = self.moved_bytes()
        size = moved.read + moved.written
        made = [value.type for value in self.updated]
        done = (self.flops(), size, self.effects())
        return [sched.HostUpdateOp(self.operands, *done, like=made)]

    def updated_by(self) -> Iterator[tuple[SSAValue, str, Matrix | None]]:
        """Each weight, the algorithm that updates it, and which matrix it is."""
        for number, weight in enumerate(self.weights):
            matrix = self.matrices.data[number].data if self.matrices is not None else None
            is_other = self.algorithm.data == MUON and matrix is not None and not matrix.rows
            yield weight, "adamw" if is_other else self.algorithm.data, matrix

    def kept_bytes(self, weight: SSAValue, algorithm: str, matrix: Matrix | None) -> Size:
        """Bytes of states and of an average, which a rank keeps of a weight."""
        states = state_bytes(algorithm, self.states.data, weight, matrix)
        if self.factors is not None:
            assert matrix is not None
            how = self.factors.data
            blocks = Blocks.of(weight, matrix, how)
            states = states + how.grafted * bytes_of(elements(weight), self.states.data)
            states = symbolic.ceildiv(states, how.ranks_of(weight.type))
            states = states + factor_bytes(algorithm, blocks)
        if self.average is None:
            return states
        return states + bytes_of(elements(weight), self.average.data)

    def flops(self) -> Size:
        more = EMA_FLOPS if self.average is not None else 0
        more += 1 if self.scales is not None else 0
        return symbolic.total(
            elements(w) * (UPDATE_FLOPS[by] + more) for w, by, _ in self.updated_by()
        )

    def moved_bytes(self) -> Bytes:
        # Reads the gradient, the weight (or its master copy) and the states; writes all but the gradient.
        parameters = symbolic.total(elements(w) for w in self.weights)
        states = symbolic.total(
            state_bytes(by, self.states.data, w, matrix)
            for w, by, matrix in self.updated_by()
            if by not in (MUON, *PRECONDITIONED)
        )
        weights, gradients = all_bytes(self.weights), all_bytes(self.gradients)
        copied, written, more = ZERO, ZERO, ZERO
        if self.copies is not None:
            copied = narrow_bytes(self.gradients)
            gradients = wide_bytes(self.gradients)
            written = gradients - (all_bytes(self.gradients) - copied)
        if self.average is not None:
            states = states + bytes_of(parameters, self.average.data)
            more = weights
        scaled = gradients if self.scales is not None else ZERO
        more = more + gradients + scaled + copied
        if self.master is None:
            return Bytes(more + weights + states, weights + states + scaled + written)
        # What is stored as wide as a master copy has none.
        wide = [w for w in self.weights if is_wide(w, self.master.data)]
        others = [w for w in self.weights if w not in wide]
        master = bytes_of(symbolic.total(map(elements, others)), self.master.data)
        again = master if self.copies is not None else ZERO
        read = more + master + again + all_bytes(wide) + states
        return Bytes(read, master + states + weights + scaled + written)


def narrow_bytes(gradients: Iterable[SSAValue]) -> Size:
    """The bytes of gradients that are narrower than fp32."""
    return all_bytes([g for g in gradients if DTYPE_BITS[tensor_of(g.type).dtype] < 32])


def wide_bytes(gradients: Iterable[SSAValue]) -> Size:
    """The bytes of gradients of which those that are narrower are in fp32."""
    return symbolic.total(
        bytes_of(elements(g), "fp32") if DTYPE_BITS[tensor_of(g.type).dtype] < 32 else num_bytes(g)
        for g in gradients
    )


def is_wide(weight: SSAValue, master: str) -> bool:
    """Whether what is stored is in the dtype of the master copy, and so is that copy."""
    leaf = leaf_of(weight.type)
    assert isinstance(leaf, ValueType)
    return leaf.num_bytes == bytes_of(leaf.num_elements, master)


@op_definition
class GradientStatisticOp(CostInterface):
    """What is to be known of all gradients before the step: their squared `norm`, to clip them, or whether they are `finite`, under a scaled loss; or what
    Adafactor adds up over ranks with parts of a matrix, its `factors`, and the `lengths` of updates and weights.

    One node that reads a rank's gradients. On a rank of several stages it goes on `from` the number that was found before of those of another stage. The
    result is this rank's term, over the axes along which ranks hold others. It has the cost of scaling them too, in place: by the scale of the loss as they
    are checked, in one pass
    (`_amp_foreach_non_finite_check_and_unscale_`, which PyTorch's GradScaler and Megatron-LM's `_unscale_main_grads_and_check_for_nan` call); by
    their norm, once that is known, in another (`_clip_grads_with_norm_` of PyTorch; `clip_grad_by_total_norm_fp32` of Megatron-LM, if it is too large).

    Gradients [D, F] each -> one number [], or `count` of them. FLOPs: 3 for each element of a `norm`, a square, a sum and a product; 2 for `finite`, a
    comparison and a product; those of Adafactor count with its step.
    """

    name = "stg.gradient_statistic"

    kind = prop_def(StringAttr)
    gradients = var_operand_def()
    before = opt_operand_def()
    on_host = flag_mark("on_host")
    """The CPU of the host reads gradients that are there, and has the number."""
    copies = flag_mark("copies")
    """It reads copies in fp32 of gradients that are narrower: see `stg.optimizer_step`."""
    unscaled = flag_mark("unscaled")
    """Gradients are scaled elsewhere, at the cost of others: it takes an operation less for each element, and reads it once."""
    result = result_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$kind `(` $gradients `)` (`from` $before^ `:` type($before))? attr-dict "
        "`:` `(` type($gradients) `)` `->` type($result)"
    )

    def __init__(
        self,
        kind: str,
        gradients: Sequence[SSAValue],
        axes: Sequence[str],
        count: Size | None = None,
        before: SSAValue | None = None,
    ) -> None:
        one = TensorType.of((), "fp32", axes)
        made = one if count is None else StackType.of(count, one)
        super().__init__([list(gradients), before], [made], kind=kind)

    def verify_(self) -> None:
        if self.kind.data not in STATISTICS:
            raise self.mistake(f"there is no `{self.kind.data}`")
        if tensor_of(self.result.type).dims:
            raise self.mistake("results are numbers")
        if self.before is not None and self.before.type != self.result.type:
            raise self.mistake(f"{self.before.type} does not go on as {self.result.type}")

    def flops(self) -> Size:
        return symbolic.total(map(elements, self.gradients)) * self.costs()[0]

    def moved_bytes(self) -> Bytes:
        size = all_bytes(self.gradients) if self.copies is None else wide_bytes(self.gradients)
        _, reads, writes = self.costs()
        return Bytes(size * reads, size * writes + num_bytes(self.result))

    def costs(self) -> tuple[int, int, int]:
        """Operations for each element, and how often it is read and written."""
        flops, reads, writes = STATISTICS[self.kind.data]
        return (flops - 1, 1, 0) if self.unscaled is not None else (flops, reads, writes)

    def lowered(self, mesh: Mapping[str, int]) -> Sequence[Operation]:
        if not self.on_host:
            return super().lowered(mesh)
        size, kinds = self.moved_bytes().moved, [self.result.type]
        called, there = f"host_{self.kind.data}", Effects(makes=Kind.HOST)
        return [sched.HostUpdateOp(self.operands, self.flops(), size, there, called, like=kinds)]


STATISTICS = {"norm": (3, 2, 1), "finite": (2, 1, 1), "factors": (0, 1, 0), "lengths": (0, 1, 0)}
"""Operations for each element, and how often it is read and written."""


@op_definition
class MomentumOp(DefaultBuilder, CostInterface):
    """Add gradients to Muon's momenta, and go on from there by Nesterov's rule: `m = b m + g`, and `g + b m` comes out, in bf16.

    One fused kernel. The momenta, in `states`, are kept as `stg.optimizer_step` says.

    Gradients [D, F] each -> the same. FLOPs: 4 for each element.
    """

    name = "stg.momentum"

    states = prop_def(StringAttr)
    gradients = var_operand_def()
    scale = opt_operand_def(TensorType)
    moments = var_result_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "`states` $states `(` $gradients `)` (`scaled` `by` $scale^ `:` type($scale))? attr-dict "
        "`:` `(` type($gradients) `)` `->` `(` type($moments) `)`"
    )

    def made(self) -> Sequence[Attribute]:
        return [with_dtype(g.type, ORTHOGONALIZED) for g in self.gradients]

    def verify_(self) -> None:
        verify_dtypes(self.name, self.states)
        if [with_dtype(g.type, ORTHOGONALIZED) for g in self.gradients] != [*self.moments.types]:
            raise self.mistake(f"gradients come out in {ORTHOGONALIZED}")

    def flops(self) -> Size:
        return symbolic.total(map(elements, self.gradients)) * 4

    def moved_bytes(self) -> Bytes:
        momenta = symbolic.total(bytes_of(elements(g), self.states.data) for g in self.gradients)
        return Bytes(all_bytes(self.gradients) + momenta, momenta + all_bytes(self.moments))


@op_definition
class OrthogonalizeOp(DefaultBuilder, CostInterface):
    """The nearest orthogonal matrix of each, by `steps` Newton-Schulz iterations `A = X X'`, `B = b A + c A A`, `X = a X + B X` (Jordan et al. 2024).

    An iteration of n x m, n the smaller, takes `4 n^2 m + 2 n^3` FLOPs: at most the 6 n^2 m of its authors' count. Ranks along the axes that it is
    `shared over` have the same matrices to make, or parts of them: they deal them out, and the busiest has an equal share, rounded up, but a whole
    matrix at least. Results are the parts that a rank stores.

    Matrices [n, m] -> the same.
    """

    name = "stg.orthogonalize"
    WORK: ClassVar[Work] = Work.ORTHOGONALIZATION

    values = var_operand_def()
    steps = prop_def(IntegerAttr)
    matrices = prop_def(ArrayAttr[MatrixAttr])
    axes = prop_def(NamesAttr)
    updates = var_result_def()

    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = (
        "`(` $values `)` `steps` $steps `as` $matrices `shared` `over` $axes attr-dict "
        "`:` functional-type($values, $updates)"
    )

    def verify_(self) -> None:
        if not len(self.values) == len(self.matrices.data) == len(self.updates):
            raise self.mistake("one matrix and one result per operand")
        for each, value, result in zip(self.matrices.data, self.values, self.updates, strict=True):
            verify_matrix(self.name, each.data, value)
            if not each.data.rows:
                raise self.mistake(f"{value.type} has no rows")
            if tensor_of(value.type).names != tensor_of(result.type).names:
                raise self.mistake(f"{result.type} of {value.type}")

    def sizes(self) -> Iterator[tuple[Size, Size, Size]]:
        """How many matrices the ranks have together, the smaller side of each, and the larger one."""
        for each, value in zip(self.matrices.data, self.values, strict=True):
            sides = [
                symbolic.product(map(symbolic.symbol, names))
                for names in (each.data.rows, each.data.columns)
            ]
            named = (*each.data.rows, *each.data.columns)
            tensor = tensor_of(value.type)
            count = symbolic.product(d.size for d in tensor.dims if d.name not in named)
            count = count * (value.type.total_count if isinstance(value.type, StackType) else ONE)
            yield count, symbolic.call("min", *sides), symbolic.call("max", *sides)

    def share(self, costs: Sequence[tuple[Size, Size]]) -> Size:
        """What the busiest rank has of costs: of so many matrices, and of one."""
        everything = symbolic.total(count * cost for count, cost in costs)
        if not self.axes.data:
            return everything
        ranks = symbolic.product(map(symbolic.symbol, self.axes.data))
        largest = costs[0][1]
        for _, cost in costs[1:]:
            largest = symbolic.call("max", largest, cost)
        return symbolic.call("max", largest, symbolic.ceildiv(everything, ranks))

    def flops(self) -> Size:
        steps = self.steps.value.data
        costs = [(count, steps * (4 * n * n * m + 2 * n * n * n)) for count, n, m in self.sizes()]
        return self.share(costs) if costs else ZERO

    def moved_bytes(self) -> Bytes:
        # Of an iteration: X is read three times, A and B twice and once; A, B and X are written.
        steps, sizes = self.steps.value.data, list(self.sizes())
        read = [(count, 2 * steps * (3 * n * m + 3 * n * n)) for count, n, m in sizes]
        written = [(count, 2 * steps * (n * m + 2 * n * n)) for count, n, m in sizes]
        return Bytes(self.share(read), self.share(written))
