"""Cross-entropy: in one kernel or in two, in steps for a split vocabulary, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue
from xdsl.irdl import operand_def, opt_prop_def, result_def

from stagec.dialects.interfaces import Bytes, elements, num_bytes
from stagec.dialects.memory import PLAIN, Effects, Overwrite
from stagec.dialects.op import op_definition
from stagec.dialects.stg.base import Indices, InferredOp, LikeOp, TensorOp, tensor_type
from stagec.dialects.stg.elementwise import cast, difference
from stagec.dialects.stg.interface import (
    BackwardPass,
    Call,
    CallError,
    Cotangents,
    Decomposition,
    Signature,
    only,
)
from stagec.dialects.types import TensorType, unscaled_bytes
from stagec.dialects.work import Work

LOSS = TensorType.of((), "fp32")


def position_type(targets: SSAValue) -> TensorType:
    """One fp32 number per target."""
    return tensor_type(targets).with_dtype("fp32")


def statistics_of_loss(logits: SSAValue, targets: SSAValue, steps: Decomposition) -> list[SSAValue]:
    """Loss and log-sum-exp from the three statistics of each position."""
    largest = steps.do(MaxLogitOp(logits))
    largest = steps.largest(largest)
    target = steps.total(steps.do(TargetLogitOp(logits, targets, largest)))
    sums = steps.total(steps.do(SumExpOp(logits, largest)))
    finish = LossOfStatisticsOp(largest, target, sums)
    steps.do(finish)
    return list(finish.results)


class VocabularyOp(InferredOp):
    """Shared by ops on logits, first operand: V may be split, and what they sum over it is summed by collectives."""

    WORK: ClassVar[Work] = Work.REDUCTION

    def indices(self) -> Indices:
        base = super().indices()
        vocabulary = tensor_type(self.operands[0]).names[-1]
        return Indices(base.operands, base.results, statistics=frozenset((vocabulary,)))


@op_definition
class CrossEntropyOp(VocabularyOp):
    """The mean of lse(logits) - logits[target]. `logits` is [..., V], `targets` what is before V.

    Keeps `lse`, one fp32 number per position. Over a split V it takes three all-reduces of that size
    (maximum, target's logit, sum), see `decompose-statistics`.

    FLOPs: 4 for each logit.
    """

    name = "stg.cross_entropy"
    FLOPS: ClassVar[tuple[int, str]] = (4, "logits")
    NUM_STATISTICS: ClassVar[int] = 1
    SIGNATURES: ClassVar[tuple[Signature, ...]] = (
        Signature.of(
            "cross_entropy(logits, targets, fused? = bool, in_place? = bool)",
            "mean of log-sum-exp(logits) - logits[target]",
        ),
    )

    logits = operand_def(TensorType)
    targets = operand_def(TensorType)
    over_logits = opt_prop_def(UnitAttr)
    """Whether its gradient takes the memory of the logits."""
    loss = result_def(TensorType)
    lse = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [LOSS, position_type(self.targets)]

    @classmethod
    def check_call(cls, call: Call) -> None:
        logits, targets = call.types
        if call.flag("in_place") and not call.flag("fused", True):
            message = "in two kernels the gradient has memory of its own"
            raise CallError(message, option="in_place", help="remove `fused = false`")
        call.need_float(0)
        call.need_ids(1)
        if logits.names[:-1] != targets.names:
            raise CallError(
                f"the logits are [{', '.join(logits.names)}], the targets [{', '.join(targets.names)}]",
                operand=1,
                help="targets have all dims of the logits but the last",
            )

    @classmethod
    def from_call(cls, call: Call, operands: Sequence[SSAValue]) -> TensorOp:
        """One kernel, or the two of eager frameworks where `fused = false`."""
        if not call.flag("fused", True):
            return LogSoftmaxLossOp(*operands)
        return CrossEntropyOp(*operands, over_logits=call.flag("in_place"))

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        given = (only(dys), self.logits, self.targets, self.lse)
        gradients.emit(
            self.logits, lambda: CrossEntropyGradOp(*given, over_logits=self.over_logits)
        )

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        return statistics_of_loss(self.logits, self.targets, steps)


@op_definition
class CrossEntropyGradOp(LikeOp):
    """(softmax(logits) - onehot(target)) * dloss / positions: no sum over V, so no collective.

    `logits` [..., V], `targets` and `lse` [...] -> [..., V]. FLOPs: 4 for each logit: subtract, exp, subtract at the target, scale.
    """

    name = "stg.cross_entropy_grad"
    WORK: ClassVar[Work] = Work.LOSS_GRAD
    FLOPS: ClassVar[tuple[int, str]] = (4, "logits")
    LIKE: ClassVar[int | None] = 1

    dloss = operand_def(TensorType)
    logits = operand_def(TensorType)
    targets = operand_def(TensorType)
    lse = operand_def(TensorType)
    over_logits = opt_prop_def(UnitAttr)
    """Whether it takes their memory, as Transformer Engine's does until 2.17 (`cross_entropy_backward`), and Liger Kernel's."""
    dlogits = result_def(TensorType)

    def effects(self) -> Effects:
        return PLAIN if self.over_logits is None else Effects((Overwrite(1, 0),))


@op_definition
class LogSoftmaxLossOp(VocabularyOp):
    """Cross-entropy in two kernels, as eager frameworks run it: log-probabilities, then the mean of the targets' negated ones.

    Keeps the log-probabilities, as large as the logits and of their dtype (PyTorch, `torch.nn.functional.cross_entropy`).
    Over a split V it takes the collectives of `stg.cross_entropy`.

    `logits` [..., V], `targets` [...] -> a loss [] and `log_probs` [..., V]. FLOPs: 4 for each logit.
    """

    name = "stg.log_softmax_loss"
    FLOPS: ClassVar[tuple[int, str]] = (4, "logits")
    NUM_STATISTICS: ClassVar[int] = 1

    logits = operand_def(TensorType)
    targets = operand_def(TensorType)
    loss = result_def(TensorType)
    log_probs = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [LOSS, tensor_type(self.logits)]

    def gradient(self, dys: Cotangents, gradients: BackwardPass) -> None:
        if not gradients.wants(self.logits):
            return
        dloss, log_probs = only(dys), self.log_probs
        target = TargetGradOp(dloss, log_probs, self.targets)
        dtargets = gradients.insert(target, self.logits).results[0]
        gradients.emit(self.logits, lambda: LogSoftmaxLossGradOp(dtargets, log_probs, dloss))

    def decomposed(self, steps: Decomposition) -> Sequence[SSAValue]:
        loss, lse = statistics_of_loss(self.logits, self.targets, steps)
        dtype = tensor_type(self.logits).dtype
        return [loss, difference(steps, self.logits, cast(steps, lse, dtype))]


LOSSES = (CrossEntropyOp, LogSoftmaxLossOp)
"""What makes a loss of logits."""


@op_definition
class TargetGradOp(LikeOp):
    """The gradient of the mean of the targets' negated log-probabilities: -dloss / positions at the target, else 0.

    `log_probs` [..., V], `targets` [...] -> [..., V]. FLOPs: 1 for each position.
    """

    name = "stg.target_grad"
    WORK: ClassVar[Work] = Work.REDUCTION
    FLOPS: ClassVar[tuple[int, str]] = (1, "targets")
    LIKE: ClassVar[int | None] = 1

    dloss = operand_def(TensorType)
    log_probs = operand_def(TensorType)
    targets = operand_def(TensorType)
    dtargets = result_def(TensorType)

    def moved_bytes(self) -> Bytes:
        # The log-probabilities say the shape alone.
        return Bytes(num_bytes(self.dloss) + num_bytes(self.targets), num_bytes(self.dtargets))


@op_definition
class LogSoftmaxLossGradOp(LikeOp):
    """dtargets + exp(log_probs) * dloss / positions: what a row of `dtargets` sums to is known, so no collective.

    `dtargets` and `log_probs` [..., V] -> [..., V]. FLOPs: 3 for each logit: exp, the share of each position, the target's term.
    """

    name = "stg.log_softmax_loss_grad"
    WORK: ClassVar[Work] = Work.REDUCTION
    FLOPS: ClassVar[tuple[int, str]] = (3, "dlogits")

    dtargets = operand_def(TensorType)
    log_probs = operand_def(TensorType)
    dloss = operand_def(TensorType)
    dlogits = result_def(TensorType)


@op_definition
class MaxLogitOp(VocabularyOp):
    """The largest logit that this device has, per position.

    [..., V] -> [...]. FLOPs: 1 for each logit.
    """

    name = "stg.max_logit"
    FLOPS: ClassVar[tuple[int, str]] = (1, "logits")

    logits = operand_def(TensorType)
    largest = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [TensorType.of(tensor_type(self.logits).names[:-1], "fp32")]


@op_definition
class TargetLogitOp(InferredOp):
    """The target's logit, less the largest, on the device that has it; zero on the others.

    `logits` [..., V], `targets` and `largest` [...] -> [...]. FLOPs: 1 for each position.
    """

    name = "stg.target_logit"
    WORK: ClassVar[Work] = Work.REDUCTION
    FLOPS: ClassVar[tuple[int, str]] = (1, "target")

    logits = operand_def(TensorType)
    targets = operand_def(TensorType)
    largest = operand_def(TensorType)
    target = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [position_type(self.targets)]

    def moved_bytes(self) -> Bytes:
        one_per_target = unscaled_bytes(elements(self.target), tensor_type(self.logits).dtype)
        return Bytes(
            one_per_target + num_bytes(self.targets) + num_bytes(self.largest),
            num_bytes(self.target),
        )


@op_definition
class SumExpOp(InferredOp):
    """The sum of exp(logit - largest) over the logits that this device has.

    `logits` [..., V], `largest` [...] -> [...]. FLOPs: 3 for each logit: subtract, exp, add.
    """

    name = "stg.sum_exp"
    WORK: ClassVar[Work] = Work.REDUCTION
    FLOPS: ClassVar[tuple[int, str]] = (3, "logits")

    logits = operand_def(TensorType)
    largest = operand_def(TensorType)
    sums = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [tensor_type(self.largest)]


@op_definition
class LossOfStatisticsOp(InferredOp):
    """Loss and log-sum-exp from the three statistics: the mean of log(sums) - target.

    Each [...] -> a loss [] and `lse` [...]. FLOPs: 3 for each position: log, subtract, add.
    """

    name = "stg.loss_of_statistics"
    WORK: ClassVar[Work] = Work.REDUCTION
    FLOPS: ClassVar[tuple[int, str]] = (3, "lse")
    NUM_STATISTICS: ClassVar[int] = 1

    largest = operand_def(TensorType)
    target = operand_def(TensorType)
    sums = operand_def(TensorType)
    loss = result_def(TensorType)
    lse = result_def(TensorType)

    def made(self) -> Sequence[TensorType]:
        return [LOSS, tensor_type(self.largest)]
