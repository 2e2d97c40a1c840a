"""What convolutions and recurrences compute, step by step as they are defined."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from xdsl.ir import SSAValue

from stagec.dialects import stg
from stagec.dialects.attributes import Dim
from tests.unit.numeric.machine import Array


class Patches:
    """Images [..., C, Y, X] and kernels [C, I, J, D]."""

    def cut(self, image: SSAValue, kernel: stg.TensorType, patches: Dim) -> Array:
        """The pixels [..., P, C, I, J] of the patches that each device has."""
        pixels = self.values[image]
        *batch, channels, rows, columns = pixels.shape
        tall, wide = (self.machine.length(d) for d in kernel.dims[1:3])
        grid = pixels.reshape(*batch, channels, rows // tall, tall, columns // wide, wide)
        grid = np.moveaxis(grid, [-4, -2, -5, -3, -1], [-5, -4, -3, -2, -1])
        cut = grid.reshape(*batch, -1, channels, tall, wide)
        whole = [*stg.tensor_type(image).dims[:-3], Dim(patches.name)]
        mine = [*whole[:-1], patches]
        return self.machine.sliced(cut, whole, mine)

    def stg_patch_embedding(self, op: stg.PatchEmbeddingOp) -> Array:
        kernel, patches = stg.tensor_type(op.kernel), stg.tensor_type(op.result).dims[-2]
        return self.per_device(
            "...pcij,cijd->...pd", self.cut(op.image, kernel, patches), self.values[op.kernel]
        )

    def stg_patch_kernel_grad(self, op: stg.PatchKernelGradOp) -> Array:
        kernel, patches = stg.tensor_type(op.dkernel), stg.tensor_type(op.dy).dims[-2]
        cut, dy = self.cut(op.image, kernel, patches), self.values[op.dy]
        depth = self.machine.depth
        cut = cut.reshape(*cut.shape[:depth], -1, *cut.shape[-3:])
        dy = dy.reshape(*dy.shape[:depth], -1, dy.shape[-1])
        return np.einsum("...ncij,...nd->...cijd", cut, dy)

    def stg_patch_image_grad(self, op: stg.PatchImageGradOp) -> Array:
        dimage, patches = stg.tensor_type(op.dimage), stg.tensor_type(op.dy).dims[-2]
        local = self.per_device("...pd,cijd->...pcij", self.values[op.dy], self.values[op.kernel])
        *batch, _, channels, tall, wide = local.shape
        rows, columns = (self.machine.length(d) for d in dimage.dims[-2:])
        count, mine = (rows // tall) * (columns // wide), local.shape[len(batch)]
        cut = np.zeros((*batch, count, channels, tall, wide))
        start = self.machine.start(patches)
        for device in np.ndindex(self.machine.shape):
            where = slice(start[device], start[device] + mine)
            cut[device][..., where, :, :, :] = local[device]
        grid = cut.reshape(*batch, rows // tall, columns // wide, channels, tall, wide)
        grid = np.moveaxis(grid, [-5, -4, -3, -2, -1], [-4, -2, -5, -3, -1])
        return grid.reshape(*batch, channels, rows, columns)

    def per_device(self, formula: str, left: Array, right: Array) -> Array:
        """A product on each device, of a batch with what has none."""
        devices = np.ndindex(self.machine.shape)
        made = [np.einsum(formula, left[device], right[device]) for device in devices]
        return np.array(made).reshape(*self.machine.shape, *made[0].shape)


class Filters:
    """Causal filters [W, channels...]."""

    def filtered(self, op: stg.CausalConvOp | stg.CausalConvKernelGradOp) -> list[Array]:
        """x shifted so that x[s - W + 1 + w] is at s, for each w; ahead if reversed."""
        x, over = self.values[op.x], op.over.data
        axis = self.machine.depth + stg.tensor_type(op.x).names.index(over)
        kernel = op.kernel if isinstance(op, stg.CausalConvOp) else op.dkernel
        width = self.machine.length(stg.tensor_type(kernel).dims[0])
        ahead = isinstance(op, stg.CausalConvOp) and op.reverse is not None
        return [
            shifted(x, width - 1 - w if not ahead else w - width + 1, axis) for w in range(width)
        ]

    def stg_causal_conv(self, op: stg.CausalConvOp) -> Array:
        kernel = stg.tensor_type(op.kernel).names
        names = stg.tensor_type(op.x).names
        taps = self.named(op.kernel, [kernel[0], *names])
        taps = np.moveaxis(taps, self.machine.depth, 0)
        return sum(tap * x for tap, x in zip(taps, self.filtered(op), strict=True))

    def stg_causal_conv_kernel_grad(self, op: stg.CausalConvKernelGradOp) -> Array:
        x, kernel = stg.tensor_type(op.x), stg.tensor_type(op.dkernel)
        taps = [
            self.to_weight(
                self.values[op.dy] * shift, x, stg.TensorType.of(kernel.dims[1:], "fp32")
            )
            for shift in self.filtered(op)
        ]
        return np.stack(taps, axis=self.machine.depth)


def shifted(x: Array, by: int, axis: int) -> Array:
    """x moved to later places, or to earlier ones if `by` is negative; zeros come in."""
    x = np.moveaxis(x, axis, 0)
    made = np.zeros_like(x)
    if by >= 0:
        made[by:] = x[: len(x) - by]
    else:
        made[:by] = x[-by:]
    return np.moveaxis(made, 0, axis)


class Scans:
    """The recurrence of `stg.ssd_scan`, one step after the other."""

    def steps(self, op: stg.SsdScanOp | stg.SsdScanGradOp) -> list[Array]:
        """x, dt, a, b and c with the sequence in front, then devices and batch; b and c for each head."""
        names = stg.tensor_type(op.x).names
        heads = self.machine.length(stg.tensor_type(op.x).dims[-2])
        x, dt = self.values[op.x], self.values[op.dt]
        a = self.named(op.a, [*names[:-3], names[-2]])
        made = [np.moveaxis(x, -3, 0), np.moveaxis(dt, -2, 0), a]
        for state in (op.b, op.c):
            array = self.values[state]
            if len(stg.tensor_type(state).names) < len(names):
                array = array[..., None, :]
            array = np.repeat(array, heads // array.shape[-2], axis=-2)
            made.append(np.moveaxis(array, -3, 0))
        return made

    def states(self, x: Array, dt: Array, a: Array, b: Array) -> list[Array]:
        """Before the first step, and after each."""
        found = [np.zeros((*x.shape[1:], b.shape[-1]))]
        for step in range(len(x)):
            decay = np.exp(dt[step] * a)[..., None, None]
            taken = (dt[step][..., None] * x[step])[..., None] * b[step][..., None, :]
            found.append(decay * found[-1] + taken)
        return found

    def stg_ssd_scan(self, op: stg.SsdScanOp) -> Array:
        x, dt, a, b, c = self.steps(op)
        states = self.states(x, dt, a, b)[1:]
        made = [np.einsum("...en,...n->...e", h, read) for h, read in zip(states, c, strict=True)]
        return np.moveaxis(np.array(made), 0, -3)

    def stg_ssd_scan_grad(self, op: stg.SsdScanGradOp) -> tuple[Array, ...]:
        x, dt, a, b, c = self.steps(op)
        dy = np.moveaxis(self.values[op.dy], -3, 0)
        states = self.states(x, dt, a, b)
        dx, ddt, db, dc = (np.zeros_like(v) for v in (x, dt, b, c))
        da = np.zeros_like(a + dt[0])
        dstate = np.zeros_like(states[0])
        for step in reversed(range(len(x))):
            dstate = dstate + dy[step][..., None] * c[step][..., None, :]
            dc[step] = np.einsum("...e,...en->...n", dy[step], states[step + 1])
            db[step] = np.einsum("...en,...e->...n", dstate, x[step]) * dt[step][..., None]
            read = np.einsum("...en,...n->...e", dstate, b[step])
            dx[step] = read * dt[step][..., None]
            decay = np.exp(dt[step] * a)
            rate = (dstate * states[step]).sum(axis=(-1, -2)) * decay
            ddt[step] = rate * a + (read * x[step]).sum(axis=-1)
            da += rate * dt[step]
            dstate = dstate * decay[..., None, None]
        depth = self.machine.depth
        da = da.sum(axis=tuple(range(depth, da.ndim - 1)))
        return (
            np.moveaxis(dx, 0, -3),
            np.moveaxis(ddt, 0, -2),
            da,
            self.of_groups(np.moveaxis(db, 0, -3), op.b),
            self.of_groups(np.moveaxis(dc, 0, -3), op.c),
        )

    def of_groups(self, gradient: Array, state: SSAValue) -> Array:
        """Summed over the heads that share a group, or over all of them."""
        shape = self.values[state].shape
        if len(shape) < gradient.ndim:
            return gradient.sum(axis=-2)
        groups = shape[-2]
        parts = (*gradient.shape[:-2], groups, gradient.shape[-2] // groups, gradient.shape[-1])
        return gradient.reshape(parts).sum(axis=-2)


class DeltaRules(Scans):
    """The recurrence of `stg.gated_delta_rule`, one step after the other."""

    def operands(self, op: stg.GatedDeltaRuleOp | stg.GatedDeltaRuleGradOp) -> list[Array]:
        """q, k, v, decay and beta with the sequence in front, then devices and batch; q and k for each head, a decay for each channel of keys or for all."""
        v = self.values[op.v]
        heads = v.shape[-2]
        made: list[Array] = []
        for key in (op.q, op.k):
            array = self.values[key]
            array = np.repeat(array, heads // array.shape[-2], axis=-2)
            made.append(np.moveaxis(array, -3, 0))
        decay, beta = self.values[op.decay], self.values[op.beta]
        decay = decay if decay.ndim == v.ndim else decay[..., None]
        gates = [np.moveaxis(decay, -3, 0), np.moveaxis(beta, -2, 0)]
        return [*made, np.moveaxis(v, -3, 0), *gates]

    def walked(self, q: Array, k: Array, v: Array, decay: Array, beta: Array) -> list[Array]:
        """States before the first step, and after each."""
        found = [np.zeros((*v.shape[1:-1], q.shape[-1], v.shape[-1]))]
        for step in range(len(v)):
            state = np.exp(decay[step])[..., None] * found[-1]
            missing = v[step] - np.einsum("...e,...eg->...g", k[step], state)
            added = beta[step][..., None] * missing
            found.append(state + k[step][..., None] * added[..., None, :])
        return found

    def stg_gated_delta_rule(self, op: stg.GatedDeltaRuleOp) -> Array:
        operands = self.operands(op)
        states = self.walked(*operands)[1:]
        made = [
            np.einsum("...e,...eg->...g", q, h) for q, h in zip(operands[0], states, strict=True)
        ]
        return np.moveaxis(np.array(made), 0, -3)

    def stg_gated_delta_rule_grad(self, op: stg.GatedDeltaRuleGradOp) -> tuple[Array, ...]:
        q, k, v, decay, beta = self.operands(op)
        dy = np.moveaxis(self.values[op.dy], -3, 0)
        states = self.walked(q, k, v, decay, beta)
        dq, dk, dv, ddecay, dbeta = (np.zeros_like(each) for each in (q, k, v, decay, beta))
        dstate = np.zeros_like(states[0])
        for step in reversed(range(len(v))):
            dq[step] = np.einsum("...eg,...g->...e", states[step + 1], dy[step])
            dstate = dstate + q[step][..., None] * dy[step][..., None, :]
            kept = np.exp(decay[step])[..., None]
            before = kept * states[step]
            missing = v[step] - np.einsum("...e,...eg->...g", k[step], before)
            of_key = np.einsum("...e,...eg->...g", k[step], dstate)
            dbeta[step] = (of_key * missing).sum(axis=-1)
            dv[step] = beta[step][..., None] * of_key
            added = beta[step][..., None] * missing
            dk[step] = np.einsum("...eg,...g->...e", dstate, added)
            dk[step] -= np.einsum("...eg,...g->...e", before, dv[step])
            dstate = dstate - k[step][..., None] * dv[step][..., None, :]
            rows = (dstate * before).sum(axis=-1)
            ddecay[step] = rows if decay.shape[-1] > 1 else rows.sum(axis=-1, keepdims=True)
            dstate = kept * dstate
        of_keys = [self.of_groups(np.moveaxis(each, 0, -3), op.k) for each in (dq, dk)]
        ddecay = np.moveaxis(ddecay, 0, -3).reshape(self.values[op.decay].shape)
        return (*of_keys, np.moveaxis(dv, 0, -3), ddecay, np.moveaxis(dbeta, 0, -2))


class Bags:
    """Rows of tables, number by number. Bags of a dim are as even as they can be."""

    def entries(
        self, op: stg.EmbeddingBagOp | stg.EmbeddingBagGradOp, table: stg.TensorType
    ) -> Iterator[tuple[tuple[int, ...], dict[str, int]]]:
        """Each device and each number that it has the row of: the places along all dims that these have."""
        ids = stg.tensor_type(op.ids)
        row = next(n for n in table.names if n not in ids.names)
        starts = self.machine.start(table.dim(row))
        length, over = self.machine.length(table.dim(row)), op.over.data
        many = self.machine.sizes[over]
        for device in np.ndindex(self.machine.shape):
            numbers = self.values[op.ids][device]
            for place in np.ndindex(numbers.shape):
                at = dict(zip(ids.names, place, strict=True))
                at[row] = numbers[place] - starts[device]
                if not 0 <= at[row] < length:
                    continue
                if op.to is not None:
                    at[op.to.data] = at[over] * self.machine.sizes[op.to.data] // many
                yield device, at

    def stg_embedding_bag(self, op: stg.EmbeddingBagOp) -> Array:
        table, made = stg.tensor_type(op.table), stg.tensor_type(op.result)
        result = np.zeros((*self.machine.shape, *self.machine.local_shape(made)))
        for device, at in self.entries(op, table):
            row = self.values[op.table][device][within(table, at)]
            result[device][within(made, at)] += row
        return result

    def stg_embedding_bag_grad(self, op: stg.EmbeddingBagGradOp) -> Array:
        table, dy = stg.tensor_type(op.dtable), stg.tensor_type(op.dy)
        result = np.zeros((*self.machine.shape, *self.machine.local_shape(table)))
        for device, at in self.entries(op, table):
            result[device][within(table, at)] += self.values[op.dy][device][within(dy, at)]
        return result


def within(tensor: stg.TensorType, at: dict[str, int]) -> tuple[int | slice, ...]:
    """Where these places are in a tensor's array, all along its other dims."""
    return tuple(at.get(n, slice(None)) for n in tensor.names)


class SequenceMeaning(Patches, Filters, DeltaRules, Bags):
    """Of all ops above; `Meaning` is one."""
