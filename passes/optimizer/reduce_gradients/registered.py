"""The order in which Megatron-LM registers parameters, where it is not that in which the forward pass uses them.

Its attention registers the projection of what attention made before those that attention reads: `linear_proj` in `Attention.__init__`, then `linear_qkv` in
`SelfAttention.__init__` (`transformer/attention.py`). With Transformer Engine a norm before `linear_qkv` is part of that layer; before multi-latent
attention, which comes to queries and keys in several steps, it is one by itself and registered first (`gpt_layer_specs.py`). Linear layers of one input in a
module have one weight: `linear_qkv`, `linear_fc1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from xdsl.ir import OpResult, SSAValue

from stagec.dialects import dist, stg
from stagec.dialects.use_def import before_placing, followed, from_stack, through, weight_path

WITH_ONE_VALUE = (stg.CastOp, stg.RenameOp, stg.TransposeOp, stg.UnaryOp, dist.ReshardOp)
"""Ops that keep their operand what it is, for a layer that reads it."""
ENDS = (stg.FusedAttention, stg.EmbeddingOp, stg.EmbeddingBagOp)
"""Where the stream of activations is as far as a layer's weights are looked for."""


@dataclass(frozen=True)
class Registration:
    """The order in which the weights of a program are registered, by path."""

    merged: Mapping[str, str]
    """Of linear layers of one input the first, where there are several."""
    later: Mapping[str, frozenset[str]]
    """Of a weight that reads what attention made: those that are registered after it, though they are used before."""


def registration(program: stg.ProgramOp) -> Registration:
    linear: dict[tuple[SSAValue, str, tuple[str, ...]], list[str]] = {}
    later: dict[str, frozenset[str]] = {}
    apart: set[str] = set()
    for op in program.walk():
        if stg.phase_of(op) != "fwd":
            continue
        if isinstance(op, stg.ContractOp):
            for path, given in weights_of(op):
                key = given, stg.scope_of(op), op.over.data
                linear.setdefault(key, []).append(path)
        elif isinstance(op, stg.FusedAttention):
            chain = Chain()
            for operand in op.operands:
                chain.follow(operand, 0)
            if chain.has_steps:
                apart |= chain.layers.keys()
            for path in readers(op.results[0]):
                later[path] = chain.weights - {path}
    merged = {
        path: paths[0] for paths in linear.values() for path in paths if apart.isdisjoint(paths)
    }
    return Registration(merged, later)


@dataclass
class Chain:
    """The weights between the stream of activations and attention, and how many linear layers come after each at most."""

    layers: dict[str, int] = field(default_factory=dict)
    norms: dict[str, int] = field(default_factory=dict)
    _seen: dict[SSAValue, int] = field(default_factory=dict)

    @property
    def has_steps(self) -> bool:
        return any(self.layers.values())

    @property
    def weights(self) -> frozenset[str]:
        """Without a norm before layers that lead to others."""
        return frozenset({*self.layers, *(path for path, depth in self.norms.items() if depth < 2)})

    def follow(self, value: SSAValue, depth: int) -> None:
        """From what is read back to the stream: the sum of two tensors, or what a layer is given."""
        if not isinstance(value, OpResult) or self._seen.get(value, -1) >= depth:
            return
        self._seen[value] = depth
        op = value.op
        own = set(filter(None, map(path_behind, op.operands)))
        others = [each for each in op.operands if not path_behind(each)]
        if isinstance(op, stg.ContractOp):
            found, depth = self.layers, depth + 1
            if not own:
                return
        elif isinstance(op, stg.RmsNormOp | stg.LayerNormOp):
            found = self.norms
            if depth and not feeds_layers(value):
                return
        elif (isinstance(op, stg.AddOp) and len(others) > 1) or isinstance(op, ENDS):
            return
        else:
            found = self.layers
        for path in own:
            found[path] = max(found.get(path, 0), depth - isinstance(op, stg.ContractOp))
        for each in others:
            self.follow(each, depth)


def feeds_layers(value: SSAValue) -> bool:
    """Whether all that read a value are linear layers."""
    readers = [use.operation for use in value.uses if stg.phase_of(use.operation) == "fwd"]
    return all(
        feeds_layers(op.results[0])
        if isinstance(op, WITH_ONE_VALUE)
        else isinstance(op, stg.ContractOp | stg.YieldOp)
        for op in readers
    )


def readers(value: SSAValue) -> list[str]:
    """The weights of the layer that reads what attention made, a bias with them."""
    found: list[str] = []
    for op in [use.operation for use in value.uses]:
        if stg.phase_of(op) != "fwd":
            continue
        if isinstance(op, stg.ContractOp):
            own = [path for path, _ in weights_of(op)]
            found += own + (biases(op.result) if own else [])
        elif isinstance(op, (*WITH_ONE_VALUE, stg.MulOp)):
            found += readers(op.results[0])
    return found


def biases(value: SSAValue) -> list[str]:
    found: list[str] = []
    for op in [use.operation for use in value.uses]:
        if isinstance(op, stg.AddOp):
            found += filter(None, map(path_behind, op.operands))
        elif isinstance(op, WITH_ONE_VALUE):
            found += biases(op.results[0])
    return found


def weights_of(op: stg.ContractOp) -> Iterable[tuple[str, SSAValue]]:
    """The path of each operand that is a weight, and the other operand, wherever it lies."""
    for value, given in ((op.left, op.right), (op.right, op.left)):
        path = path_behind(value)
        if path:
            yield path, followed(given, before_placing)


def path_behind(value: SSAValue) -> str:
    """The path of the weight that a value is: cast, or sliced from a stack; nothing if it is none."""
    return weight_path(followed(value, through(*WITH_ONE_VALUE), from_stack))
