"""The optimizer's step over all parameters of a device, as one fused (multi-tensor) kernel."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    irdl_op_definition,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec import symbolic
from stagec.dialects.interfaces import Bytes, CostInterface, all_bytes, elements, num_bytes
from stagec.dialects.memory import Effects, Overwrite, Update
from stagec.dialects.types import StackType, TensorType, bytes_of, tensor_of
from stagec.symbolic import Size

NUM_STATES = {"sgd": 0, "sgd_momentum": 1, "adam": 2, "adamw": 2, "lion": 1, "adafactor": 0}
"""State tensors as large as the parameter: momentum (Lion: Chen et al., arXiv:2302.06675); first and second moment (Kingma and Ba 2015)."""

UPDATE_FLOPS = {"sgd": 2, "sgd_momentum": 4, "adam": 12, "adamw": 14, "lion": 10, "adafactor": 10}
"""Operations per parameter of the update's formulas (Kingma and Ba 2015; Loshchilov and Hutter 2019; arXiv:2302.06675, algorithm 2;
arXiv:1804.04235, algorithm 4)."""

EMA_FLOPS = 3
"""`e = d e + (1 - d) w`."""


def state_bytes(algorithm: str, dtype: str, weight: SSAValue) -> Size:
    """Bytes of what an optimizer keeps of a parameter, but for copies of it.

    Adafactor keeps sums over the rows and over the columns of squared gradients, of a vector all (Shazeer and Stern, arXiv:1804.04235). All dims but
    the last are rows.
    """
    full = bytes_of(elements(weight), dtype) * NUM_STATES[algorithm]
    if algorithm != "adafactor":
        return full
    tensor = tensor_of(weight.type)
    if len(tensor.dims) < 2:
        return bytes_of(elements(weight), dtype)
    columns, layers = tensor.dims[-1].size, symbolic.ONE
    value_type = weight.type
    while isinstance(value_type, StackType):
        layers, value_type = layers * value_type.count, value_type.element
    return bytes_of(elements(weight) / columns + columns * layers, dtype)


@irdl_op_definition
class OptimizerStepOp(CostInterface):
    """Update each weight from its gradient: `stg.optimizer_step "adamw" (%w, ...) from (%g, ...)`.

    `states` is the dtype of the moments; `master` that of the copy that is updated when
    the weights themselves are narrower (Micikevicius et al. 2018). What it keeps is implied; where that comes from
    the host, it stands behind `with`, and comes out updated in place, to be stored. `average` is the dtype of a moving average of the weights, if
    one is kept. Gradients are read `scaled by` a number, where they are clipped or their loss was scaled.
    """

    name = "stg.optimizer_step"

    algorithm = prop_def(StringAttr)
    states = prop_def(StringAttr)
    master = opt_prop_def(StringAttr)
    average = opt_prop_def(StringAttr)
    weights = var_operand_def()
    gradients = var_operand_def()
    scale = opt_operand_def(TensorType)
    kept = var_operand_def()
    updated = var_result_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$algorithm `states` $states (`master` $master^)? (`average` $average^)? "
        "`(` $weights `)` `from` `(` $gradients `)` (`scaled` `by` $scale^ `:` type($scale))? (`with` `(` $kept^ `)`)? attr-dict "
        "`:` type($weights) `from` type($gradients) (`with` type($kept)^ `->` type($updated))?"
    )

    def __init__(
        self,
        algorithm: str,
        states: str,
        master: str | None,
        weights: Sequence[SSAValue],
        gradients: Sequence[SSAValue],
        kept: Sequence[SSAValue] = (),
        average: str | None = None,
        scale: SSAValue | None = None,
    ) -> None:
        properties = {"algorithm": StringAttr(algorithm), "states": StringAttr(states)}
        if master is not None:
            properties["master"] = StringAttr(master)
        if average is not None:
            properties["average"] = StringAttr(average)
        super().__init__(
            operands=[list(weights), list(gradients), scale, list(kept)],
            result_types=[[value.type for value in kept]],
            properties=properties,
        )

    def verify_(self) -> None:
        if self.algorithm.data not in NUM_STATES:
            raise VerifyException(f"stg.optimizer_step: `{self.algorithm.data}` is no optimizer")
        if len(self.weights) != len(self.gradients):
            raise VerifyException("stg.optimizer_step: one gradient per weight")
        if [v.type for v in self.kept] != [v.type for v in self.updated]:
            raise VerifyException("stg.optimizer_step: what is kept comes out with its type")
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            if tensor_of(weight.type).names != tensor_of(gradient.type).names:
                raise VerifyException(f"stg.optimizer_step: {gradient.type} for {weight.type}")

    def effects(self) -> Effects:
        master = self.master.data if self.master is not None else None
        first = len(self.operands) - len(self.kept)
        overwrites = (Overwrite(first + number, number) for number in range(len(self.kept)))
        return Effects(
            tuple(overwrites),
            updates=Update(tuple(map(self.kept_bytes, self.weights)), master),
        )

    def kept_bytes(self, weight: SSAValue) -> Size:
        """Bytes of states and of an average, which a rank keeps of a weight."""
        states = state_bytes(self.algorithm.data, self.states.data, weight)
        if self.average is None:
            return states
        return states + bytes_of(elements(weight), self.average.data)

    def flops(self) -> Size:
        per_parameter = UPDATE_FLOPS[self.algorithm.data]
        per_parameter += EMA_FLOPS if self.average is not None else 0
        per_parameter += 1 if self.scale is not None else 0
        return symbolic.total(elements(w) for w in self.weights) * per_parameter

    def moved_bytes(self) -> Bytes:
        # Reads the gradient, the weight (or its master copy) and the states; writes all but the gradient.
        parameters = symbolic.total(elements(w) for w in self.weights)
        form = (self.algorithm.data, self.states.data)
        states = symbolic.total(state_bytes(*form, w) for w in self.weights)
        if self.average is not None:
            states = states + bytes_of(parameters, self.average.data)
        weights, gradients = all_bytes(self.weights), all_bytes(self.gradients)
        if self.master is None:
            return Bytes(gradients + weights + states, weights + states)
        master = bytes_of(parameters, self.master.data)
        return Bytes(gradients + master + states, master + states + weights)


@irdl_op_definition
class GradientStatisticOp(CostInterface):
    """What is to be known of all gradients before the step: their squared `norm`, to clip them, or whether they are `finite`, under a scaled loss.

    One fused kernel that reads a rank's gradients. The result is this rank's term, over the axes along which ranks hold others.
    """

    name = "stg.gradient_statistic"

    kind = prop_def(StringAttr)
    gradients = var_operand_def()
    result = result_def(TensorType)

    assembly_format = (
        "$kind `(` $gradients `)` attr-dict `:` `(` type($gradients) `)` `->` type($result)"
    )

    def __init__(self, kind: str, gradients: Sequence[SSAValue], axes: Sequence[str]) -> None:
        super().__init__(
            operands=[list(gradients)],
            properties={"kind": StringAttr(kind)},
            result_types=[TensorType.of((), "fp32", axes)],
        )

    def verify_(self) -> None:
        if self.kind.data not in STATISTICS:
            raise VerifyException(f"stg.gradient_statistic: there is no `{self.kind.data}`")
        if tensor_of(self.result.type).dims:
            raise VerifyException("stg.gradient_statistic: the result is one number")

    def flops(self) -> Size:
        return symbolic.total(map(elements, self.gradients)) * STATISTICS[self.kind.data]

    def moved_bytes(self) -> Bytes:
        return Bytes(all_bytes(self.gradients), num_bytes(self.result))


STATISTICS = {"norm": 2, "finite": 1}
"""Operations for each element: a square and a sum; a comparison."""
