"""How long every node of a step takes: kernels as a framework launches them, and communication as the network carries it.

The device's setting `kernels` says which ops share a kernel. Under `eager` each op has a kernel of its own. Under `fused`, as in Megatron-LM and Transformer
Engine, elementwise ops that follow each other are one kernel, and so are a norm's two gradients. Under `compiled`, as with `torch.compile`, norms, softmax
and reductions also join the ops that they read and those that read them. A value that one op of a fused kernel hands to another is neither written to
memory nor read from it, unless something else reads it too. What several elementwise ops read that can be one kernel is read once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from stagec.arrays import Floats, Ints
from stagec.backend.program import Node, RankClass, TraceProgram, TraceSet
from stagec.dialects.sched.actions import Collective, Compute, HostCopy, HostUpdate, NodeAction
from stagec.dialects.types import QUANTIZED
from stagec.dialects.work import Work
from stagec.estimate.joined_kernels import joined_kernels, work_of
from stagec.estimate.kernels import KernelPrices
from stagec.estimate.kernels.price import Basis, Price
from stagec.estimate.network import Network, rate
from stagec.plans.clauses import Plan


@dataclass(frozen=True)
class SegmentPrices:
    """How long the nodes of a segment take."""

    us: np.ndarray
    """`[node]`, in µs."""
    basis: np.ndarray
    """`[node]`: what each time is based on (`Basis`)."""


@dataclass(frozen=True)
class NodeCosts:
    """The times and bytes of the nodes of a segment, in several plans that differ in sizes alone. All arrays are `[node, plan]`; times are µs."""

    us: Floats
    basis: Ints
    moved: Floats
    """The bytes that a computing node reads and writes, or those of a collective's operand and result together."""
    written: Floats
    """The bytes of these that are written."""

    @staticmethod
    def of(nodes: Sequence[Node], prices: Sequence[Price], slowness: float) -> NodeCosts:
        """The costs of nodes in one plan, whose slowest device has this `slowness`: the arrays are `[node, 1]`."""
        found = np.array([bytes_of(node.action) for node in nodes], float).reshape(-1, 2)
        one = (len(nodes), 1)
        return NodeCosts(
            np.array([price.on_slowest(slowness) for price in prices]).reshape(one),
            np.array([int(price.basis) for price in prices], np.int64).reshape(one),
            found[:, :1],
            found[:, 1:],
        )


def bytes_of(action: NodeAction) -> tuple[int, int]:
    """The bytes that a computing action reads and writes, and those of them that it writes. A collective reads its operand and writes its result."""
    if isinstance(action, Collective):
        return action.operand_bytes + action.result_bytes, action.result_bytes
    return (action.num_bytes, action.num_written) if isinstance(action, Compute) else (0, 0)


BACKWARD = ("bwd", "wgrad")
"""Phases whose products run in a backward pass."""


@dataclass
class Prices:
    """The times of all nodes of a job."""

    plan: Plan
    network: Network
    kernels: KernelPrices | None
    """The times of kernels; None for a device that is a few settings alone, whose nodes are timed by a roofline."""
    _segments: dict[tuple[int, int], SegmentPrices] = field(default_factory=dict)
    _escaping: dict[int, list[set[int]]] = field(default_factory=dict)

    @staticmethod
    def of(traces: TraceSet, plan: Plan) -> Prices:
        kernels = kernel_prices(plan, traces.is_training)
        return Prices(plan, Network.of(plan, traces.mesh), kernels)

    @property
    def slowness(self) -> float:
        """How many times as long the slowest device of the mesh takes as a typical one, where its limit of power decides."""
        return (
            1.0
            if self.kernels is None
            else self.kernels.device.slowest_of(self.network.mesh.num_ranks)
        )

    def segment(self, rank_class: RankClass, index: int) -> SegmentPrices:
        """The times of the nodes of one segment of a rank class, by the segment's number."""
        program = rank_class.program
        key = (id(program), index)
        if key not in self._segments:
            self._segments[key] = self.find(program, index)
        return self._segments[key]

    def find(self, program: TraceProgram, index: int) -> SegmentPrices:
        """Compute what `segment` keeps."""
        segment = program.segments[index]
        costs = NodeCosts.of(segment.nodes, list(map(self.node, segment.nodes)), self.slowness)
        self.share(segment.nodes, self.escaping(program)[index], costs)
        return SegmentPrices(costs.us[:, 0], costs.basis[:, 0])

    def share(self, nodes: Sequence[Node], escaping: Collection[int], costs: NodeCosts) -> None:
        """Change the costs of the nodes of a segment, from what each takes by itself to what it takes where it shares kernels with its neighbours.

        Other segments read the results of the nodes in `escaping`, so these are written to memory.
        """
        if self.kernels is None:
            return
        if self.plan.device.kernels != "eager":
            self.fuse(nodes, escaping, costs)
        for i in self.inside(nodes, escaping):
            costs.us[i], costs.basis[i] = 0.0, Basis.RULE
        self.sum_pieces(nodes, costs)
        self.pack_exchanges(nodes, costs)

    def node(self, node: Node) -> Price:
        """The time of a node by itself."""
        if node.pieces > 1:
            # Kernels of the pieces of a product fill the device together, and copy engines move them as fast as one message.
            whole = self.node(replace(node, pieces=1, action=of_all_pieces(node)))
            return whole.times(1 / node.pieces)
        action = node.action
        if isinstance(action, Compute):
            if self.kernels is None:
                return Price(self.roofline_us(action), Basis.ROOFLINE)
            if action.work == Work.WAIT:
                return Price(0.0, Basis.RULE)
            if self.kernels.is_cached(action):
                part = self.kernels.part_of_step(action, node.phase in BACKWARD)
                copied = self.kernels.copied_bytes(action)
                whole = replace(action, num_bytes=action.num_bytes + copied)
                price = self.quantized(replace(whole, num_written=action.num_written + copied))
                return price.times(part)
            if action.work == Work.QUANTIZE:
                return self.quantized(action)
            found = self.kernels.price(action, node.phase in BACKWARD)
            if action.work == Work.LOSS_GRAD and self.writes_early:
                return self.early_gradient(action, found)
            return found.plus((action.num_kernels - 1) * self.kernels.device.launch_us)
        if isinstance(action, Collective):
            return self.network.collective(action)
        if isinstance(action, HostCopy):
            if action.is_of_nvme:
                seconds = action.num_bytes / rate(self.plan.device.nvme_bytes_per_s)
                return Price(1e6 * seconds, Basis.ROOFLINE)
            reached = self.network.reached.host
            seconds = action.num_bytes / (rate(self.plan.device.host_bytes_per_s) * reached)
            return Price(1e6 * seconds, Basis.ROOFLINE)
        if isinstance(action, HostUpdate):
            seconds = action.num_bytes / rate(self.plan.device.host_memory_bytes_per_s)
            return Price(1e6 * seconds, Basis.ROOFLINE)
        return self.network.transfer(action)

    def quantized(self, action: Compute) -> Price:
        """The time of a quantization, which may have to find its scale first."""
        assert self.kernels is not None
        if not self.finds_scale(action):
            return self.kernels.price(action)
        # "Performance analysis" in Transformer Engine's "FP8 Current Scaling": two reads, one for the largest number and one to convert.
        assert action.kernel is not None
        read = action.num_bytes - action.num_written
        is_found = self.kernels.maximum_is_found(action.kernel)
        found_us = 0.0 if is_found else self.kernels.quantized(action.kernel, read).us
        whole = self.kernels.quantized(action.kernel, action.num_bytes)
        # The largest number is set to zero before, and made a scale behind (`Float8CurrentScalingQuantizer::quantize_impl` of its release 2.9); in
        # nvfp4 rows and columns are converted by kernels of their own (`NVFP4Quantizer::quantize_impl`).
        scale = self.kernels.quantized(action.kernel, SCALE_BYTES)
        besides = 2 * scale.us if self.kernels.trains == "cudnn" else 0.0
        agreed = self.network.collective(agreement(action)).us if self.agrees(action) else 0
        return Price(found_us + whole.us + besides + agreed, whole.basis)

    def kernels_for_scale(self, action: Compute) -> int:
        """How many kernels quantize an operand once: where a scale is found first, its largest number is set to zero, found, unless it was found
        before, and made a scale (`Float8CurrentScalingQuantizer::quantize_impl` of Transformer Engine 2.9).
        """
        if self.kernels is None or self.kernels.trains != "cudnn" or not self.finds_scale(action):
            return 1
        assert action.kernel is not None
        return 3 if self.kernels.maximum_is_found(action.kernel) else 4

    @property
    def writes_early(self) -> bool:
        """Whether the kernel of the loss already writes the gradients of the logits, so that the backward pass only multiplies them by the loss's gradient.

        Transformer Engine does so (`cross_entropy_kernel` and `element_mul_kernel`, 2.9), and so reads and writes the logits twice.
        """
        return self.plan.device.kernels == "fused"

    def early_gradient(self, action: Compute, once: Price) -> Price:
        """The time of a gradient of logits that is read and written twice (`writes_early`). `once` is the time of reading and writing once.

        If the device's file states the rate of the whole loss, it is the time of that without the first reading.
        """
        assert self.kernels is not None
        rate = self.kernels.device.loss_bytes_per_s
        if not rate:
            return Price(2 * once.us, once.basis)
        first = self.kernels.measured.moved(action.num_bytes - action.num_written).us
        return Price(max(1e6 * 2 * action.num_bytes / rate - first, 2 * once.us), Basis.RULE)

    def finds_scale(self, compute: Compute) -> bool:
        """Whether a quantization reads its operand for a scale first: then it is in memory, and no kernel makes it and converts it at once.

        nvfp4 has a scale of the whole tensor besides those of blocks, which is always that of the tensor itself (arXiv:2509.25149, appendix C).
        """
        if compute.work != Work.QUANTIZE or self.kernels is None or compute.kernel is None:
            return False
        dtype = compute.kernel.dtype
        return dtype == "nvfp4" or (dtype == "fp8" and not self.kernels.scales_are_known)

    def agrees(self, compute: Compute) -> bool:
        """Whether ranks agree on the largest number of what a quantization reads before it is made a scale, as all of them gather the result.

        Transformer Engine does so for what a column-parallel layer reads and for the gradient of what a row-parallel layer makes, under sequence parallelism:
        an all-reduce between its kernels, which wait for it (`with_amax_reduction` in `module/linear.py` and `module/layernorm_linear.py`,
        `Float8CurrentScalingQuantizer::quantize_impl` and `NVFP4Quantizer::quantize_impl` of release 2.9).
        """
        engine = self.kernels is not None and self.kernels.trains == "cudnn"
        return (
            engine and self.finds_scale(compute) and bool(compute.kernel and compute.kernel.agreed)
        )

    def roofline_us(self, compute: Compute) -> float:
        """The time in µs on a device that is peaks alone. A node of a trace has at least one operation and one byte."""
        device = self.plan.device
        return 1e6 * max(
            max(1, compute.num_ops) / rate(device.flops_per_s),
            max(1, compute.num_bytes) / rate(device.memory_bytes_per_s),
        )

    # Kernels of several ops

    def fuse(self, nodes: Sequence[Node], escaping: Collection[int], costs: NodeCosts) -> None:
        """Change the times of nodes that share a kernel: together they take one launch, and the bytes that go into and out of the kernel."""
        assert self.kernels is not None
        moved: dict[int, Floats] = {}
        readers: dict[int, list[int]] = defaultdict(list)
        for i, node in enumerate(nodes):
            for dep in node.data_deps:
                if dep.slot < 0:
                    readers[dep.node].append(i)
            if work_of(node) == Work.NORM_WEIGHT_GRAD:
                costs.us[i], costs.basis[i] = 0.0, Basis.RULE
        group_of, joined = self.groups(nodes)
        for i, before in joined.items():
            reads = (costs.moved[i] - costs.written[i]) * (1 - read_before(nodes[i]))
            for j in before:
                reads = reads - costs.written[j]
            moved[i] = np.maximum(reads, 0) + costs.written[i]
        for i in group_of:
            is_inside = readers[i] and all(group_of.get(k) == group_of[i] for k in readers[i])
            if i not in escaping and is_inside:
                moved[i] = moved[i] - np.minimum(costs.written[i], moved[i])
                continue
            normed = [k for k in readers[i] if is_normed(nodes[k])]
            if normed and all(group_of.get(k) == group_of[i] for k in normed):
                # Others want the norm's statistics alone: what the quantization reads is not written.
                read = costs.moved[normed[0]] - costs.written[normed[0]]
                moved[i] = moved[i] - np.minimum(read, moved[i])
        groups: dict[int, list[int]] = {}
        for i, group in group_of.items():
            groups.setdefault(group, []).append(i)
        for members in groups.values():
            if len(members) == 1 and not read_before(nodes[members[0]]):
                continue
            total = np.sum([moved[i] for i in members], axis=0)
            kept, plans = np.unique(total, return_inverse=True)
            whole = [self.kernels.measured.moved(each) for each in kept.tolist()]
            us = np.array([price.us for price in whole])[plans]
            basis = np.array([int(price.basis) for price in whole])[plans]
            for i in members:
                share = np.where(total > 0, moved[i] / np.maximum(total, 1), 1 / len(members))
                costs.us[i], costs.basis[i] = us * share, basis

    def inside(self, nodes: Sequence[Node], escaping: Collection[int]) -> set[int]:
        """The nodes of a segment whose time is part of a measured kernel of an inference engine, so that they take none of their own.

        Layers of experts sort tokens as they read them, apply the activation, and weigh and add up what experts made (`fused_moe` in vLLM,
        `CutlassFusedMoE` and `TRTLLMGenFusedMoE` in TensorRT-LLM). Attention was measured from one tensor of queries, keys and values on: it rotates them and
        writes the cache (`attn.forward` in aiconfigurator's `collect_attn.py` and `collect_mla.py`).
        """
        eager = self.plan.device.kernels == "eager"
        if eager or self.kernels is None or not self.kernels.serves:
            return set()
        layers = {
            i for i, n in enumerate(nodes) if self.kernels.experts.is_in_layer_of_experts(n.action)
        }
        whole = layers | {i for i, node in enumerate(nodes) if work_of(node) in ATTENTION}
        readers: dict[int, set[int]] = defaultdict(set)
        found: set[int] = set()
        for i, node in enumerate(nodes):
            read = {dep.node for dep in node.data_deps if dep.slot < 0}
            for each in read:
                readers[each].add(i)
            if work_of(node) == Work.COMBINE and read & layers:
                found.add(i)
        for i in reversed(range(len(nodes))):
            if work_of(nodes[i]) in FED and readers[i] and readers[i] <= whole | found:
                found.add(i)
        return found.difference(escaping)

    def groups(self, nodes: Sequence[Node]) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Which nodes share kernels: for each node that may share one, the first node of its kernel, and the nodes before it whose kernel it joins."""
        compiled = self.plan.device.kernels == "compiled"
        return joined_kernels(nodes, lambda node: self.joins(node, compiled))

    def joins(self, node: Node, compiled: bool) -> Collection[Work] | None:
        """The kinds of work that a node can join: if a node of such a kind makes what it reads, both are one kernel. None if it never shares its kernel.

        A compiler joins all that is elementwise, reductions and quantizations too. Megatron-LM's activations hand bf16 to Transformer Engine's linear
        layers, which quantize it by a kernel of their own, unless its op fuser is used; a norm in front of one may write it itself
        (`core/transformer/mlp.py`; `module/linear.py` of Transformer Engine 2, and `is_written_quantized`).
        """
        action = node.action
        if not isinstance(action, Compute) or self.finds_scale(action):
            return None
        if self.kernels is not None and self.kernels.is_cached(action):
            return None
        work = action.work
        if compiled:
            return JOINED if work in JOINED else None
        if work == Work.QUANTIZE:
            assert action.kernel is not None
            if self.kernels is None or not self.kernels.is_written_quantized(action.kernel):
                return None
            return (Work.REDUCTION,) if action.kernel.behind == "norm" else ELEMENTWISE
        if work in (Work.REDUCTION, Work.LOSS_GRAD):
            return ()
        return ELEMENTWISE if work in ELEMENTWISE else None

    def may_share(self, node: Node) -> bool:
        """Whether a node may share its kernel with others, so that it takes less where these stand beside it."""
        return self.joined_by(node) is not None

    def may_join(self, node: Node, before: Work) -> bool:
        """Whether a node is one kernel with what makes a value that it reads, if that does this kind of work and may share its kernel."""
        return before in (self.joined_by(node) or ())

    def joined_by(self, node: Node) -> Collection[Work] | None:
        """The same as `joins`, for the kernels of the plan."""
        kernels = self.plan.device.kernels
        if self.kernels is None or kernels == "eager":
            return None
        return self.joins(node, kernels == "compiled")

    def escaping(self, program: TraceProgram) -> Sequence[Collection[int]]:
        """For each segment of a program, the nodes whose results other instances of segments read."""
        key = id(program)
        if key not in self._escaping:
            first = program.first_node
            is_read = np.zeros(int(first[-1]), bool)
            is_read[program.slots[program.slots >= 0]] = True
            positions = np.flatnonzero(is_read)
            row = np.searchsorted(first, positions, side="right") - 1
            most = max((len(each.nodes) for each in program.segments), default=1)
            escapes = np.zeros(len(program.segments) * most, bool)
            escapes[program.segment[row] * most + positions - first[row]] = True
            by_segment = escapes.reshape(-1, most)
            self._escaping[key] = [{*np.flatnonzero(own).tolist()} for own in by_segment]
        return self._escaping[key]

    def sum_pieces(self, nodes: Sequence[Node], costs: NodeCosts) -> None:
        """Add the time of a sum: where ranks send each other pieces of a product, another kernel reads all pieces that came and writes their sum.

        So do PyTorch (`_fused_matmul_reduce_scatter_impl`, on the stream of the products) and the rings that Transformer Engine has for quantized
        operands (`reduce_bf16` in `CommOverlapP2PBase::split_overlap_rs`). In bf16 its collective's own kernel adds up.
        """
        assert self.kernels is not None
        for node in nodes:
            action = node.action
            if (
                node.pieces == 1
                or not isinstance(action, Collective)
                or action.kind != "reduce_scatter"
            ):
                continue
            for made in {dep.node for dep in node.data_deps if dep.slot < 0}:
                product = nodes[made].action
                if not isinstance(product, Compute) or product.kernel is None:
                    continue
                if self.plan.device.kernels == "fused" and product.kernel.dtype not in QUANTIZED:
                    continue
                ways = action.operand_bytes / max(action.result_bytes, 1)
                moved = node.pieces * costs.written[made] * (1 + 1 / ways)
                known = {each: self.kernels.measured.moved(each).us for each in set(moved.tolist())}
                costs.us[made] += np.array([known[each] for each in moved.tolist()]) / node.pieces

    def pack_exchanges(self, nodes: Sequence[Node], costs: NodeCosts) -> None:
        """Add the time of packing: around an all-to-all beside attention, one kernel puts the parts for each rank together and one puts them into place after.

        So do Transformer Engine (`flash_attn_a2a_communicate`: `movedim(...).contiguous()` and `index_select`) and DeepSpeed (`single_all_to_all`); of
        experts' exchanges these are nodes of their own.
        """
        assert self.kernels is not None
        exchanges = {
            i
            for i, node in enumerate(nodes)
            if isinstance(node.action, Collective) and node.action.kind == "all_to_all"
        }
        packed: set[int] = set()
        for i, node in enumerate(nodes):
            if exchanges and work_of(node) in (*ATTENTION, Work.ATTENTION_GRAD):
                packed |= {dep.node for dep in node.data_deps if dep.slot < 0} & exchanges
            elif i in exchanges:
                before = [nodes[dep.node] for dep in node.data_deps if dep.slot < 0]
                if any(work_of(each) in (*ATTENTION, Work.ATTENTION_GRAD) for each in before):
                    packed.add(i)
        for i in packed:
            costs.us[i] += [
                2 * self.kernels.measured.moved(each).us for each in costs.moved[i].tolist()
            ]

    @property
    def host_launch_us(self) -> float:
        """The time in µs that the host takes to launch a kernel; 0 where graphs launch all kernels, or the device's file does not say it."""
        model = self.plan.device.model
        return 0.0 if model is None or self.plan.device.graphs else model.host_launch_us

    def is_captured(self, node: Node) -> bool:
        """Whether a node is part of a module that a graph launches as a whole (`captured`)."""
        path = f".{node.scope}."
        return any(f".{module}." in path for module in self.plan.device.captured)

    def launches(self, nodes: Sequence[Node], escaping: Collection[int]) -> Floats:
        """`[node]`: how many kernels the host launches for each node of a segment.

        Ops and products that share a kernel are launched with their first. The update of all weights is a few kernels, whichever framework
        (`multi_tensor_apply`). Modules that are `captured` are launched at once. Kernels for one expert after the other are launched by one call, and each
        further one is a part of a launch.
        """
        group_of: dict[int, int] = {}
        free: tuple[Work, ...] = (Work.WAIT,)
        if self.plan.device.kernels != "eager":
            group_of, _ = self.groups(nodes)
            free = (Work.WAIT, Work.NORM_WEIGHT_GRAD)
        found = np.zeros(len(nodes))
        products: set[object] = set()
        inside = self.inside(nodes, escaping)
        captured = [self.is_captured(node) for node in nodes]
        for i, node in enumerate(nodes):
            if captured[i]:
                found[i] = i == 0 or not captured[i - 1]
                continue
            if (
                i in inside
                or node.phase == "optim"
                or work_of(node) in free
                or group_of.get(i, i) != i
            ):
                continue
            found[i] = node.action.num_kernels if isinstance(node.action, Compute) else 1
            sizes = kernel_sizes(node)
            if self.kernels is None:
                continue
            if node.checked and self.host_launch_us:
                checks = CHECK_KERNELS * self.kernels.device.host_kernel_us
                found[i] += checks / self.host_launch_us
            if isinstance(node.action, Compute):
                each_takes = self.kernels_for_scale(node.action)
                found[i] += self.kernels.further_launches(node.action, each_takes)
                found[i] += self.agrees(node.action)
                found[i] *= self.kernels.part_of_step(node.action, node.phase in BACKWARD)
            found[i] += self.kernels.copies and "copied" in sizes
            if "all_m" not in sizes:
                continue
            whole = (node.phase, sizes["all_m"], sizes["all_n"], sizes["k"])
            if whole[1] * whole[2] != sizes["m"] * sizes["n"] and self.kernels.merges:
                found[i] *= whole not in products
                products.add(whole)
            if "summed" in sizes and not self.kernels.products_add:
                found[i] += 1
        return found


def kernel_prices(plan: Plan, is_training: bool) -> KernelPrices | None:
    """The times of kernels on the plan's device, in a step that trains or not; None for a device without a file."""
    model = plan.device.model
    if model is None:
        return None
    merges = plan.device.kernels != "eager"
    attends = model.multiplied(plan.precision.attention or "bf16")
    known = plan.precision.scaling == "delayed"
    found = KernelPrices(
        model,
        merges,
        attends,
        known,
        keeps_transposed=plan.process.transposed_weights,
        caches=plan.process.cached_weights,
        products_add=plan.device.kernels == "fused",
        eager=plan.device.kernels == "eager",
        copies=plan.zero is not None and plan.zero.level == 3 and plan.zero.copies,
        averages=plan.gradients.average == "before",
        checks=plan.gradients.check,
        sums_tables=plan.microbatch is not None or plan.pipeline is not None,
        trains=TRAINING_ATTENTION[plan.device.kernels] if is_training else "",
        engine=plan.device.experts,
        swizzle=plan.device.swizzle,
        fuses=plan.device.fused_activations,
        norms=plan.device.norms,
    )
    return shared(found)


@lru_cache(maxsize=4)
def shared(prices: KernelPrices) -> KernelPrices:
    """The first object that is equal to `prices`: many plans share what it knows of kernels."""
    return prices


CHECK_KERNELS = 6
"""What a check of a bucket launches: its norm, whether that is NaN or infinite, and copies of both answers to the host (`check_grads` of Megatron-LM)."""

SCALE_BYTES = 4


def read_before(node: Node) -> float:
    """The share of what a node reads that a kernel of several ops has read already."""
    return node.action.read_before if isinstance(node.action, Compute) else 0.0


def is_normed(node: Node) -> bool:
    """Whether a node quantizes what a norm made for it alone."""
    action = node.action
    return isinstance(action, Compute) and bool(action.kernel and action.kernel.behind == "norm")


def agreement(compute: Compute) -> Collective:
    """The all-reduce by which ranks agree on the largest number of a tensor (`Prices.agrees`)."""
    assert compute.kernel is not None
    return Collective("all_reduce", compute.kernel.agreed, SCALE_BYTES, SCALE_BYTES, "fp32")


ATTENTION = (Work.ATTENTION, Work.LATENT_ATTENTION)
ELEMENTWISE = (Work.ELEMENTWISE, Work.ROTATION, Work.CAST)
FED = (*ELEMENTWISE, Work.APPEND, Work.DISPATCH)
"""Work that a measured kernel does itself with the values that it reads, so that it takes no time of its own before it."""
JOINED = (*ELEMENTWISE, Work.QUANTIZE, Work.REDUCTION, Work.LOSS_GRAD)
"""Work that a compiler joins to one kernel."""
TRAINING_ATTENTION = {"fused": "cudnn", "compiled": "flash2", "eager": "flash2"}
"""For each setting `kernels`, whose attention kernels run in training: those that Transformer Engine calls, or PyTorch's `scaled_dot_product_attention`."""


def notes_on_kernels(plan: Plan, works: Collection[Work]) -> list[str]:
    """Notes for the user on what the setting `kernels` decides in a step that trains and does this work, besides which ops share a kernel."""
    if plan.device.model is None:
        return []
    kernels, is_fused = plan.device.kernels, TRAINING_ATTENTION[plan.device.kernels] == "cudnn"
    found: list[str] = []
    if not {*works}.isdisjoint((*ATTENTION, Work.ATTENTION_GRAD)):
        own = "cuDNN" if is_fused else "FlashAttention-2"
        others = "" if is_fused else ", not those of cuDNN as under `fused`"
        found.append(f"attention has kernels of {own} where the device has tables{others}")
    if not is_fused:
        found.append("a kernel of its own adds a weight's gradient to that of earlier microbatches")
    return [f"kernels = {kernels}: {', and '.join(found)}"] if found else []


def kernel_sizes(node: Node) -> dict[str, int]:
    """The sizes of a node's kernel by name; empty for a node without one."""
    action = node.action
    return dict(action.kernel.sizes) if isinstance(action, Compute) and action.kernel else {}


def of_all_pieces(node: Node) -> NodeAction:
    """The action that a node's pieces make together."""
    action, pieces = node.action, node.pieces
    if isinstance(action, Collective):
        operand_bytes, result_bytes = pieces * action.operand_bytes, pieces * action.result_bytes
        return replace(action, operand_bytes=operand_bytes, result_bytes=result_bytes)
    assert isinstance(action, Compute)
    return replace(action, num_ops=pieces * action.num_ops, num_bytes=pieces * action.num_bytes)
