"""What each op on tensors computes, on every device at once.

The formulas are those of the ops' docstrings. A mean divides by global sizes, so that devices and
microbatches each hold a term of it. Norms have no epsilon.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from xdsl.ir import Operation, SSAValue

from stagec.dialects import stg
from stagec.dialects.types import TensorType
from tests.unit.numeric.machine import Array, Machine
from tests.unit.numeric.sequences import SequenceMeaning

erf = np.vectorize(math.erf)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "cos": np.cos,
    "exp": np.exp,
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "log": np.log,
    "neg": np.negative,
    "relu": lambda x: np.maximum(x, 0),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "sin": np.sin,
    "softplus": lambda x: np.logaddexp(0, x),
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
}

DERIVATIVE: dict[str, Callable[[Array], Array]] = {
    # Of x,
    "abs": np.sign,
    "cos": lambda x: -np.sin(x),
    "gelu": lambda x: (
        (1 + erf(x / math.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    ),
    "log": lambda x: 1 / x,
    "silu": lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    "sin": np.cos,
    "softplus": sigmoid,
    "square": lambda x: 2 * x,
    # and of y.
    "exp": lambda y: y,
    "relu": lambda y: (y > 0) * 1.0,
    "rsqrt": lambda y: -(y**3) / 2,
    "sigmoid": lambda y: y * (1 - y),
    "sqrt": lambda y: 1 / (2 * y),
    "tanh": lambda y: 1 - y * y,
}

NEVER = -1e30
"""A masked score: a number, so that nothing becomes NaN."""


class Meaning(SequenceMeaning):
    """Computes ops; `values` has what each operand is."""

    def __init__(self, machine: Machine, values: dict[SSAValue, Array], path: tuple) -> None:
        self.machine, self.values, self.path = machine, values, path

    def compute(self, op: stg.TensorOp) -> Sequence[Array]:
        formula = getattr(self, op.name.replace(".", "_"), None)
        made = formula(op) if formula is not None else self.by_steps(op)
        return made if isinstance(made, tuple) else (made,)

    def by_steps(self, op: stg.TensorOp) -> tuple[Array, ...]:
        """An op that has no formula here, as one of a plug-in, computes what its steps do."""
        steps = ComputedSteps(self)
        results = op.decomposed(steps)
        assert results is not None, f"`{op.name}` has neither a formula in {__name__} nor steps"
        made = tuple(self.values[each] for each in results)
        for step in reversed(steps.made):
            step.drop_all_references()
        return made

    # Names

    def named(self, value: SSAValue, names: Sequence[str]) -> Array:
        """The array of a value with its dims in this order; of length 1 where it has no such dim."""
        return self.laid_out(self.values[value], stg.tensor_type(value).names, names)

    def laid_out(self, array: Array, have: Sequence[str], names: Sequence[str]) -> Array:
        depth = self.machine.depth
        order = [have.index(n) for n in names if n in have]
        assert len(order) == len(have), (have, names)
        array = np.transpose(array, (*range(depth), *(depth + i for i in order)))
        lengths = iter(array.shape[depth:])
        shape = [next(lengths) if n in have else 1 for n in names]
        return array.reshape(*array.shape[:depth], *shape)

    def places(self, value: TensorType, names: Sequence[str]) -> tuple[int, ...]:
        """Array axes of dims."""
        return tuple(self.machine.depth + value.names.index(n) for n in names)

    def count(self, names: Sequence[str]) -> int:
        """Elements of dims in the whole model: over all devices and microbatches."""
        return int(np.prod([self.machine.sizes[n] for n in names], dtype=int))

    def positions(self, tensor: TensorType, name: str, names: Sequence[str]) -> Array:
        """The global position along one dim of each element, to broadcast against `names`."""
        dim = tensor.dim(name)
        start = self.machine.start(dim)
        numbers = start[..., None] + np.arange(self.machine.length(dim))
        return self.laid_out(numbers, [name], names)

    # Contractions and tables

    def stg_contract(self, op: stg.ContractOp) -> Array:
        left, right, result = (stg.tensor_type(v) for v in (op.left, op.right, op.result))
        letters = {n: chr(ord("A") + i) for i, n in enumerate({*left.names, *right.names})}
        terms = ["..." + "".join(letters[n] for n in t.names) for t in (left, right, result)]
        formula = f"{terms[0]},{terms[1]}->{terms[2]}"
        return np.einsum(formula, self.values[op.left], self.values[op.right])

    def rows_here(self, ids: Array, table: TensorType) -> tuple[Array, Array]:
        """Where a device's rows of a table have the numbers, and which numbers it has."""
        dim = table.dims[0]
        start = self.machine.start(dim).reshape(
            *self.machine.shape, *[1] * (ids.ndim - self.machine.depth)
        )
        local = ids - start
        here = (local >= 0) & (local < self.machine.length(dim))
        return np.where(here, local, 0), here

    def stg_embedding(self, op: stg.EmbeddingOp) -> Array:
        ids, table = self.values[op.ids], self.values[op.table]
        rows, here = self.rows_here(ids, stg.tensor_type(op.table))
        result = np.empty((*ids.shape, *table.shape[self.machine.depth + 1 :]))
        for device in np.ndindex(self.machine.shape):
            found = table[device][rows[device]]
            mask = here[device].reshape(*here[device].shape, *[1] * (table[device].ndim - 1))
            result[device] = found * mask
        return result

    def stg_embedding_grad(self, op: stg.EmbeddingGradOp) -> Array:
        ids, table = self.values[op.ids], stg.tensor_type(op.dtable)
        names = (*stg.tensor_type(op.ids).names, *table.names[1:])
        dy = self.named(op.dy, names)
        rows, here = self.rows_here(ids, table)
        result = np.zeros((*self.machine.shape, *self.machine.local_shape(table)))
        for device in np.ndindex(self.machine.shape):
            mine = here[device]
            np.add.at(result[device], rows[device][mine], dy[device][mine])
        return result

    def heads(self, op: stg.RepeatHeadsOp | stg.SumHeadsOp) -> tuple[Array, int, int]:
        """The operand, the array axis of its heads, and how many there become of or from one."""
        x, result = stg.tensor_type(op.x), stg.tensor_type(op.result)
        old = self.machine.length(x.dim(op.old.data))
        new = self.machine.length(result.dim(op.new.data))
        return self.values[op.x], self.places(x, [op.old.data])[0], max(old, new) // min(old, new)

    def stg_repeat_heads(self, op: stg.RepeatHeadsOp) -> Array:
        x, axis, times = self.heads(op)
        return np.repeat(x, times, axis=axis)

    def stg_sum_heads(self, op: stg.SumHeadsOp) -> Array:
        x, axis, times = self.heads(op)
        shape = (*x.shape[:axis], x.shape[axis] // times, times, *x.shape[axis + 1 :])
        return x.reshape(shape).sum(axis=axis + 1)

    # Elementwise, views, reductions

    def pair(self, op: stg.AddOp | stg.SubOp | stg.MulOp | stg.DivOp) -> tuple[Array, Array]:
        names = stg.tensor_type(op.result).names
        return self.named(op.left, names), self.named(op.right, names)

    def stg_add(self, op: stg.AddOp) -> Array:
        left, right = self.pair(op)
        if op.once is not None:
            return left + right / self.machine.ways(stg.tensor_type(op.left).partial)
        return left + right

    def stg_sub(self, op: stg.SubOp) -> Array:
        left, right = self.pair(op)
        return left - right

    def stg_mul(self, op: stg.MulOp) -> Array:
        left, right = self.pair(op)
        return left * right

    def stg_div(self, op: stg.DivOp) -> Array:
        left, right = self.pair(op)
        return left / right

    def stg_unary(self, op: stg.UnaryOp) -> Array:
        return UNARY[op.function.data](self.values[op.x])

    def stg_unary_grad(self, op: stg.UnaryGradOp) -> Array:
        return self.values[op.dy] * DERIVATIVE[op.function.data](self.values[op.saved])

    def stg_quantize(self, op: stg.QuantizeOp) -> Array:
        """Formats do not round here: what is left is who reads what, and where."""
        return self.values[op.x]

    def stg_cast(self, op: stg.CastOp) -> Array:
        return self.values[op.x]

    def stg_rename(self, op: stg.RenameOp) -> Array:
        return self.values[op.x]

    def stg_transpose(self, op: stg.TransposeOp) -> Array:
        return self.named(op.x, stg.tensor_type(op.result).names)

    def stg_concat(self, op: stg.ConcatOp) -> Array:
        result, to = stg.tensor_type(op.result), op.to.data
        lengths = {d.name: self.machine.length(d) for d in result.dims}
        parts = []
        for part, dim in zip(op.parts, op.over.data, strict=True):
            names = [dim if n == to else n for n in result.names]
            lengths[dim] = self.machine.length(stg.tensor_type(part).dim(dim))
            shape = (*self.machine.shape, *(lengths[n] for n in names))
            parts.append(np.broadcast_to(self.named(part, names), shape))
        return np.concatenate(parts, axis=self.places(result, [to])[0])

    def stg_split(self, op: stg.SplitOp) -> tuple[Array, ...]:
        (axis,) = self.places(stg.tensor_type(op.x), [op.over.data])
        ends = np.cumsum([self.machine.sizes[n] for n in op.to.data])[:-1]
        return tuple(np.split(self.values[op.x], ends, axis=axis))

    def stg_reduce(self, op: stg.ReduceOp) -> Array:
        x, over = self.values[op.x], op.over.data
        axes = self.places(stg.tensor_type(op.x), over)
        if op.kind.data == "max":
            return x.max(axis=axes)
        total = x.sum(axis=axes)
        return total / self.count(over) if op.kind.data == "mean" else total

    def stg_max_grad(self, op: stg.MaxGradOp) -> Array:
        names = stg.tensor_type(op.x).names
        return self.named(op.dy, names) * (self.named(op.x, names) == self.named(op.largest, names))

    def stg_broadcast(self, op: stg.BroadcastOp) -> Array:
        result = stg.tensor_type(op.result)
        shape = (*self.machine.shape, *self.machine.local_shape(result))
        return np.broadcast_to(self.named(op.x, result.names), shape).copy()

    def stg_dropout(self, op: stg.DropoutOp) -> tuple[Array, Array]:
        """The mask depends on the place in the program and on the global position alone."""
        tensor = stg.tensor_type(op.mask)
        where = f"{op.location} {self.path}"
        generator = np.random.default_rng(zlib.crc32(where.encode()))
        shape = [self.machine.sizes[n] for n in tensor.names]
        mask = generator.random(shape) >= float(op.rate.data)
        mine = self.machine.spread(mask * 1.0, tensor)
        return self.values[op.x] * mine, mine

    def stg_causal_mask(self, op: stg.CausalMaskOp) -> Array:
        scores = stg.tensor_type(op.scores)
        query, key = op.query.data, op.key.data
        later = self.positions(scores, key, scores.names) > self.positions(
            scores, query, scores.names
        )
        return np.where(later, 0 if op.zero is not None else NEVER, self.values[op.scores])

    # Norms and softmax

    def mean(self, array: Array, tensor: TensorType, over: Sequence[str]) -> Array:
        axes = self.places(tensor, over)
        return array.mean(axis=axes, keepdims=True)

    def stg_rms_norm(self, op: stg.RmsNormOp) -> tuple[Array, Array]:
        x, tensor = self.values[op.x], stg.tensor_type(op.x)
        rstd = 1 / np.sqrt(self.mean(x * x, tensor, op.over.data))
        y = x * rstd
        if op.weight is not None:
            y = y * self.named(op.weight, tensor.names)
        return y, rstd.squeeze(self.places(tensor, op.over.data))

    def stg_rms_norm_grad(self, op: stg.RmsNormGradOp) -> Array:
        tensor = stg.tensor_type(op.x)
        dy, rstd = self.named(op.dy, tensor.names), self.named(op.rstd, tensor.names)
        if op.weight is not None:
            dy = dy * self.named(op.weight, tensor.names)
        xhat = self.values[op.x] * rstd
        return rstd * (dy - xhat * self.mean(dy * xhat, tensor, op.over.data))

    def to_weight(self, array: Array, have: TensorType, weight: TensorType) -> Array:
        """Summed over all dims but the weight's."""
        extra = [n for n in have.names if n not in weight.names]
        kept = [n for n in have.names if n in weight.names]
        return self.laid_out(array.sum(axis=self.places(have, extra)), kept, weight.names)

    def stg_rms_norm_weight_grad(self, op: stg.RmsNormWeightGradOp) -> Array:
        tensor = stg.tensor_type(op.x)
        product = self.named(op.dy, tensor.names) * self.values[op.x]
        product = product * self.named(op.rstd, tensor.names)
        return self.to_weight(product, tensor, stg.tensor_type(op.dweight))

    def stg_layer_norm(self, op: stg.LayerNormOp) -> tuple[Array, Array, Array]:
        x, tensor, over = self.values[op.x], stg.tensor_type(op.x), op.over.data
        mean = self.mean(x, tensor, over)
        rstd = 1 / np.sqrt(self.mean((x - mean) ** 2, tensor, over))
        y = (x - mean) * rstd
        if op.weight is not None:
            y = y * self.named(op.weight, tensor.names)
        if op.bias is not None:
            y = y + self.named(op.bias, tensor.names)
        places = self.places(tensor, over)
        return y, mean.squeeze(places), rstd.squeeze(places)

    def stg_layer_norm_grad(self, op: stg.LayerNormGradOp) -> Array:
        tensor, over = stg.tensor_type(op.x), op.over.data
        dy, rstd = self.named(op.dy, tensor.names), self.named(op.rstd, tensor.names)
        if op.weight is not None:
            dy = dy * self.named(op.weight, tensor.names)
        xhat = (self.values[op.x] - self.named(op.mean, tensor.names)) * rstd
        rest = dy - self.mean(dy, tensor, over) - xhat * self.mean(dy * xhat, tensor, over)
        return rstd * rest

    def stg_layer_norm_weight_grad(self, op: stg.LayerNormWeightGradOp) -> Array:
        tensor = stg.tensor_type(op.x)
        xhat = self.values[op.x] - self.named(op.mean, tensor.names)
        product = self.named(op.dy, tensor.names) * xhat * self.named(op.rstd, tensor.names)
        return self.to_weight(product, tensor, stg.tensor_type(op.dweight))

    def stg_softmax(self, op: stg.SoftmaxOp) -> Array:
        x = self.values[op.x]
        axes = self.places(stg.tensor_type(op.x), op.over.data)
        powers = np.exp(x - x.max(axis=axes, keepdims=True))
        return powers / powers.sum(axis=axes, keepdims=True)

    def stg_softmax_grad(self, op: stg.SoftmaxGradOp) -> Array:
        tensor = stg.tensor_type(op.y)
        y, dy = self.values[op.y], self.named(op.dy, tensor.names)
        axes = self.places(tensor, op.over.data)
        return y * (dy - (dy * y).sum(axis=axes, keepdims=True))

    # Attention: [..., S, H, E] with heads before the sequence inside

    def stg_rope(self, op: stg.RopeOp) -> Array:
        tensor = stg.tensor_type(op.x)
        x = self.values[op.x]
        where = self.positions(tensor, tensor.names[max(0, len(tensor.names) - 3)], tensor.names)
        half = x.shape[-1] // 2
        angle = where * 1.0 / 10 ** (2 * np.arange(half) / half)
        if op.inverse is not None:
            angle = -angle
        even, odd = x[..., :half], x[..., half:]
        turned = [even * np.cos(angle) - odd * np.sin(angle)]
        turned.append(even * np.sin(angle) + odd * np.cos(angle))
        return np.concatenate(turned, axis=-1)

    def scores(self, op: stg.AttentionOp | stg.AttentionGradOp) -> tuple[Array, Array, Array]:
        """Masked scores, and keys and values with a head for each query head."""
        q, k = stg.tensor_type(op.q), stg.tensor_type(op.k)
        times = self.machine.length(q.dims[-2]) // self.machine.length(k.dims[-2])
        keys = np.repeat(self.values[op.k], times, axis=-2)
        values = np.repeat(self.values[op.v], times, axis=-2)
        scale = self.scale_of(op)
        scores = np.einsum("...she,...the->...hst", self.values[op.q], keys) * scale
        if op.softcap is not None:
            cap = float(Fraction(op.softcap.data))
            scores = cap * np.tanh(scores / cap)
        asked = self.positions(q, q.names[-3], [q.names[-3], ""])
        seen = np.arange(self.machine.length(k.dims[-3]))
        distance = asked - seen
        *batch, queries, heads, _ = q.names
        if op.bias is not None:
            scores = scores + self.named(op.bias, [*batch, heads, queries, k.names[-3]])
        if op.alibi is not None:
            slopes = 2.0 ** -(1.0 + self.positions(q, heads, [*batch, heads, queries, k.names[-3]]))
            away = self.laid_out(np.abs(distance), [queries, ""], [*batch, heads, queries, ""])
            scores = scores - slopes * away
        hidden = np.zeros(distance.shape, bool)
        if op.causal is not None:
            hidden |= distance < 0
        if op.window is not None:
            hidden |= distance >= op.window.data.integer(self.machine.sizes)
        between = [1] * (scores.ndim - self.machine.depth - 2)
        hidden = hidden.reshape(*self.machine.shape, *between, *hidden.shape[-2:])
        return np.where(hidden, NEVER, scores), keys, values

    def of_parts(self, op: stg.FusedAttention, *results: Array) -> tuple[Array, ...]:
        """Results of the keys that a device has: those of its part, where keys are spread."""
        if op.spread is None:
            return results
        return tuple(np.expand_dims(each, self.machine.depth) for each in results)

    def stg_latent_attention(self, op: stg.LatentAttentionOp) -> tuple[Array, ...]:
        """Of queries that see all positions."""
        near, far, latents, rotated = (self.values[each] for each in op.operands)
        scores = np.einsum("...shc,...tc->...hst", near, latents)
        scores = scores + np.einsum("...shr,...tr->...hst", far, rotated)
        largest = scores.max(axis=-1, keepdims=True)
        lse = largest + np.log(np.exp(scores - largest).sum(axis=-1, keepdims=True))
        result = np.einsum("...hst,...tc->...shc", np.exp(scores - lse), latents)
        return self.of_parts(op, result, np.swapaxes(lse.squeeze(-1), -1, -2))

    def stg_combine_attention(self, op: stg.CombineAttentionOp) -> Array:
        """Parts weighted by their shares of the softmax; a device that has one of them makes a term."""
        first, outputs, lse = self.machine.depth, self.values[op.outputs], self.values[op.lse]
        of_all = np.log(np.exp(lse).sum(axis=first, keepdims=True))
        own = self.machine.part(lse, 0, op.spread.data) if op.is_sum else lse
        return (outputs * np.exp(own - of_all)[..., None]).sum(axis=first)

    def stg_append(self, op: stg.AppendOp) -> Array:
        """What is new in place of the last positions of a cache that has no room for others."""
        result, over, into = stg.tensor_type(op.result), op.over.data, op.into.data
        before = self.count([into]) - self.count([over])
        at = self.positions(result, into, result.names) - before
        (axis,) = self.places(result, [into])
        index = np.clip(at, 0, None)
        new = np.take_along_axis(self.values[op.new], index, axis)
        return np.where(at >= 0, new, self.values[op.cache])

    def stg_last_positions(self, op: stg.LastPositionsOp) -> Array:
        """Of one new position all."""
        return self.values[op.x]

    def scale_of(self, op: stg.AttentionOp | stg.AttentionGradOp) -> float:
        if op.scale is not None:
            return float(Fraction(op.scale.data))
        return 1 / math.sqrt(self.machine.length(stg.tensor_type(op.q).dims[-1]))

    def stg_attention(self, op: stg.AttentionOp) -> tuple[Array, ...]:
        scores, _, values = self.scores(op)
        largest = scores.max(axis=-1, keepdims=True)
        sums = np.exp(scores - largest).sum(axis=-1, keepdims=True)
        if op.sinks is not None:
            sums = sums + np.exp(self.values[op.sinks][..., None, :, None, None] - largest)
        lse = largest + np.log(sums)
        result = np.einsum("...hst,...thg->...shg", np.exp(scores - lse), values)
        return self.of_parts(op, result, np.swapaxes(lse.squeeze(-1), -1, -2))

    def stg_attention_grad(self, op: stg.AttentionGradOp) -> tuple[Array, ...]:
        scores, keys, values = self.scores(op)
        dy, output = self.values[op.dy], self.values[op.output]
        p = np.exp(scores - np.swapaxes(self.values[op.lse], -1, -2)[..., None])
        dv = np.einsum("...hst,...shg->...thg", p, dy)
        dp = np.einsum("...shg,...thg->...hst", dy, values)
        delta = np.swapaxes((dy * output).sum(axis=-1), -1, -2)[..., None]
        ds = p * (dp - delta)
        if op.softcap is not None:
            capped = np.where(scores == NEVER, 0, scores) / float(Fraction(op.softcap.data))
            ds = ds * (1 - capped**2)
        dq = np.einsum("...hst,...the->...she", ds, keys) * self.scale_of(op)
        dk = np.einsum("...hst,...she->...the", ds, self.values[op.q]) * self.scale_of(op)
        made = dq, self.shared(dk, op.k), self.shared(dv, op.v)
        if op.dbias is None:
            return made
        *batch, queries, heads, _ = stg.tensor_type(op.q).names
        of_scores = [*batch, heads, queries, stg.tensor_type(op.k).names[-3]]
        letters = {name: chr(ord("A") + i) for i, name in enumerate(of_scores)}
        kept = "".join(letters[name] for name in stg.tensor_type(op.dbias).names)
        return *made, np.einsum(f"...{''.join(letters.values())}->...{kept}", ds)

    def stg_attention_sinks_grad(self, op: stg.AttentionSinksGradOp) -> Array:
        share = np.exp(self.values[op.sinks][..., None, None, :] - self.values[op.lse])
        of_queries = share * (self.values[op.dy] * self.values[op.output]).sum(axis=-1)
        return -of_queries.sum(axis=(-3, -2))

    def shared(self, gradient: Array, value: SSAValue) -> Array:
        """Summed over the query heads that share a head."""
        heads = self.machine.length(stg.tensor_type(value).dims[-2])
        times = gradient.shape[-2] // heads
        shape = (*gradient.shape[:-2], heads, times, gradient.shape[-1])
        return gradient.reshape(shape).sum(axis=-2)

    # Loss

    def target_here(self, logits: SSAValue, targets: SSAValue) -> Array:
        """One where a logit is the target's, on the device that has it."""
        tensor = stg.tensor_type(logits)
        names = tensor.names
        numbers = self.positions(tensor, names[-1], names)
        return (numbers == self.named(targets, names)) * 1.0

    def loss(self, losses: Array, targets: TensorType) -> Array:
        """This device's term of the mean over all positions."""
        return losses.sum(axis=self.places(targets, targets.names)) / self.count(targets.names)

    def stg_cross_entropy(self, op: stg.CrossEntropyOp) -> tuple[Array, Array]:
        logits = self.values[op.logits]
        largest = logits.max(axis=-1, keepdims=True)
        lse = (largest + np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True))).squeeze(-1)
        target = (logits * self.target_here(op.logits, op.targets)).sum(axis=-1)
        return self.loss(lse - target, stg.tensor_type(op.targets)), lse

    def stg_cross_entropy_grad(self, op: stg.CrossEntropyGradOp) -> Array:
        names = stg.tensor_type(op.logits).names
        p = np.exp(self.values[op.logits] - self.named(op.lse, names))
        share = self.named(op.dloss, names) / self.count(stg.tensor_type(op.targets).names)
        return (p - self.target_here(op.logits, op.targets)) * share

    def stg_log_softmax_loss(self, op: stg.LogSoftmaxLossOp) -> tuple[Array, Array]:
        logits = self.values[op.logits]
        largest = logits.max(axis=-1, keepdims=True)
        log_probs = logits - largest
        log_probs = log_probs - np.log(np.exp(log_probs).sum(axis=-1, keepdims=True))
        losses = -(log_probs * self.target_here(op.logits, op.targets)).sum(axis=-1)
        return self.loss(losses, stg.tensor_type(op.targets)), log_probs

    def stg_target_grad(self, op: stg.TargetGradOp) -> Array:
        names = stg.tensor_type(op.log_probs).names
        share = self.named(op.dloss, names) / self.count(stg.tensor_type(op.targets).names)
        return -self.target_here(op.log_probs, op.targets) * share

    def stg_log_softmax_loss_grad(self, op: stg.LogSoftmaxLossGradOp) -> Array:
        names = stg.tensor_type(op.log_probs).names
        share = self.named(op.dloss, names) / self.count(names[:-1])
        return self.values[op.dtargets] + np.exp(self.values[op.log_probs]) * share

    def stg_max_logit(self, op: stg.MaxLogitOp) -> Array:
        return self.values[op.logits].max(axis=-1)

    def stg_target_logit(self, op: stg.TargetLogitOp) -> Array:
        names = stg.tensor_type(op.logits).names
        shifted = self.values[op.logits] - self.named(op.largest, names)
        return (shifted * self.target_here(op.logits, op.targets)).sum(axis=-1)

    def stg_sum_exp(self, op: stg.SumExpOp) -> Array:
        names = stg.tensor_type(op.logits).names
        return np.exp(self.values[op.logits] - self.named(op.largest, names)).sum(axis=-1)

    def stg_loss_of_statistics(self, op: stg.LossOfStatisticsOp) -> tuple[Array, Array]:
        logs = np.log(self.values[op.sums])
        losses = self.loss(logs - self.values[op.target], stg.tensor_type(op.largest))
        return losses, self.values[op.largest] + logs


class ComputedSteps(stg.Decomposition):
    """Computes the steps of an op whose statistics are of dims that are whole: nothing is to be added up over axes."""

    axes = ()

    def __init__(self, meaning: Meaning) -> None:
        self.meaning = meaning
        self.made: list[Operation] = []

    def do(self, step: Operation) -> SSAValue:
        assert isinstance(step, stg.TensorOp), step
        self.made.append(step)
        self.meaning.values.update(zip(step.results, self.meaning.compute(step), strict=True))
        return step.results[0]

    def total(self, partial: SSAValue) -> SSAValue:
        return partial

    def largest(self, x: SSAValue) -> SSAValue:
        return x
