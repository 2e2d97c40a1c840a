"""The optimizer's step over all parameters of a device, as one fused (multi-tensor) kernel."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.utils.exceptions import VerifyException

from stagec import symbolic
from stagec.dialects.interfaces import Bytes, CostInterface, all_bytes, elements
from stagec.dialects.types import dtype_bytes, tensor_of
from stagec.symbolic import Size

NUM_STATES = {"sgd": 0, "sgd_momentum": 1, "adam": 2, "adamw": 2}
"""State tensors per parameter: momentum; first and second moment (Kingma and Ba 2015)."""


UPDATE_FLOPS = {"sgd": 2, "sgd_momentum": 4, "adam": 12, "adamw": 14}
"""Operations per parameter of the update's formulas (Kingma and Ba 2015; Loshchilov and Hutter 2019)."""


@irdl_op_definition
class OptimizerStepOp(CostInterface):
    """Update each weight from its gradient: `stg.optimizer_step "adamw" (%w, ...) from (%g, ...)`.

    `states` is the dtype of the moments; `master` that of the copy that is updated when
    the weights themselves are narrower (Micikevicius et al. 2018). What it keeps is implied; where that comes from
    the host, it stands behind `with`, and comes out updated in place, to be stored.
    """

    name = "stg.optimizer_step"

    algorithm = prop_def(StringAttr)
    states = prop_def(StringAttr)
    master = opt_prop_def(StringAttr)
    weights = var_operand_def()
    gradients = var_operand_def()
    kept = var_operand_def()
    updated = var_result_def()

    irdl_options = (AttrSizedOperandSegments(as_property=True), ParsePropInAttrDict())
    assembly_format = (
        "$algorithm `states` $states (`master` $master^)? "
        "`(` $weights `)` `from` `(` $gradients `)` (`with` `(` $kept^ `)`)? attr-dict "
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
    ) -> None:
        properties = {"algorithm": StringAttr(algorithm), "states": StringAttr(states)}
        if master is not None:
            properties["master"] = StringAttr(master)
        super().__init__(
            operands=[list(weights), list(gradients), list(kept)],
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

    def flops(self) -> Size:
        per_parameter = UPDATE_FLOPS[self.algorithm.data]
        return symbolic.total(elements(w) for w in self.weights) * per_parameter

    def moved_bytes(self) -> Bytes:
        # Reads the gradient, the weight (or its master copy) and the states; writes all but the gradient.
        parameters = symbolic.total(elements(w) for w in self.weights)
        states = parameters * NUM_STATES[self.algorithm.data] * dtype_bytes(self.states.data)
        weights, gradients = all_bytes(self.weights), all_bytes(self.gradients)
        if self.master is None:
            return Bytes(gradients + weights + states, weights + states)
        master = parameters * dtype_bytes(self.master.data)
        return Bytes(gradients + master + states, master + states + weights)
