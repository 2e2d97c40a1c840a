"""Fused attention: of training, of a prefill, of one token, of latents; forward and backward."""

from __future__ import annotations

from itertools import product

import numpy as np

from stagec.devices.rules import KINDS, LATENT, ROTARY, Sizes, score_pairs
from stagec.dialects.sched.actions import Compute, Kernel
from stagec.dialects.types import bytes_per_element
from stagec.dialects.work import Work
from stagec.estimate.kernels.choices import KernelChoices
from stagec.estimate.kernels.measured import WIDE_BYTES, MeasuredKernels
from stagec.estimate.kernels.price import Basis, Price, stretched

FORWARD_PRODUCTS, BACKWARD_PRODUCTS = 2, 5
"""How many products fused attention computes in each pass: its backward pass computes scores again (Dao 2023, FlashAttention-2, section 3.1)."""
BACKWARD_KEYS = 128
"""How many keys a block of attention's backward kernel has, which goes over all queries (FlashAttention-2, section 3.2, and `kBlockN` of its kernels for
heads of 64 and 128 in `flash_bwd_launch_template.h`)."""
LEAST = {
    name: np.float64(size)
    for name, size in dict(batch=1, seq=16, keys=16, heads=1, kv_heads=1).items()
}
"""The smallest sizes of attention that tables have. The time at these sizes is the fixed time that a kernel takes however little it computes."""
TRAINED_WIDTHS = (64, 128)
"""The widths of heads for which there are tables of attention kernels for training."""


class AttentionPrices:
    """The times of fused attention."""

    def __init__(self, choices: KernelChoices, measured: MeasuredKernels) -> None:
        self.choices, self.measured, self.device = choices, measured, choices.device

    def price(self, compute: Compute, kernel: Kernel) -> Price:
        """The time of attention: one kernel for all sequences with several new positions, and one for all with a single one.

        Their sequences may have any lengths (`varlen` kernels of FlashAttention, paged decoding): blocks of all of them fill the device together.
        So each kind of sequences takes its share, by pairs of positions, of what the kernel would take if all of its pairs were of that kind.
        """
        sizes = {name: np.float64(max(size, 1)) for name, size in kernel.sizes}
        if not kernel.requests:
            return self.one_attention(compute.num_ops, compute.num_bytes, kernel, sizes)
        # Of keys that devices share, one has fewer than there are new positions.
        kinds = [
            (n, s, max(k, 1), s * k - s * (min(s, k) - 1) / 2) for n, s, k in kernel.requests if n
        ]
        pairs = sum(n * each for n, _, _, each in kinds)
        positions = sum(n * (s + k) for n, s, k, _ in kinds)
        us, basis = 0.0, Basis.MEASURED
        for together in (
            [each for each in kinds if each[1] > 1],
            [each for each in kinds if each[1] == 1],
        ):
            own = sum(n * each for n, _, _, each in together)
            for count, new, keys, each in together:
                alike = own / each
                batch = sizes["batch"] * np.float64(alike)
                one = {**sizes, "batch": batch, "seq": np.float64(new), "keys": np.float64(keys)}
                moved = compute.num_bytes * alike * (new + keys) / positions
                price = self.one_attention(compute.num_ops * own / pairs, moved, kernel, one)
                us += price.us * count / alike
                basis = max(basis, price.basis)
        return Price(us, basis)

    def one_attention(
        self, num_ops: float, num_bytes: float, kernel: Kernel, sizes: dict[str, np.float64]
    ) -> Price:
        """The time of attention for sequences of equal lengths. It is that of the table of causal prefill times the ratio of FLOPs, which differ with another
        mask, another width of heads, or in a backward pass.
        """
        cache = self.choices.cache_of(kernel)
        if kernel.kind == Work.LATENT_ATTENTION:
            return self.latent(num_ops, num_bytes, cache, sizes)
        backward = kernel.kind == Work.ATTENTION_GRAD
        width = int(sizes["head_dim"])
        if sizes["seq"] == 1:
            return self.decode(num_ops, num_bytes, cache, sizes)
        measured = {**sizes, "window": np.float64(0)}
        if self.choices.trains:
            seen = {**sizes, "window": sizes.get("reach", sizes["keys"])}
            if seen["window"] < sizes["keys"]:
                trained = self.trained_attention(num_ops, backward, seen, "window")
                if trained is not None:
                    # A window takes no longer than all positions, which is what some kernels compute with any.
                    pairs = score_pairs(sizes["seq"], sizes["keys"], seen["window"])
                    more = float(score_pairs(sizes["seq"], sizes["keys"], sizes["keys"]) / pairs)
                    all_positions = {name: sizes[name] for name in sizes if name != "reach"}
                    whole = self.one_attention(num_ops * more, num_bytes, kernel, all_positions)
                    return min(trained, whole, key=lambda each: each.us)
            trained = self.trained_attention(num_ops, backward, measured)
            if trained is not None:
                return trained
        if sizes["keys"] > sizes["seq"]:
            return self.resumed_attention(num_ops, num_bytes, kernel, sizes)
        known = [name for name in ("64", "128", "192", "256") if int(name) >= width] or ["128"]
        whole = BACKWARD_PRODUCTS / FORWARD_PRODUCTS if backward else 1.0
        slower = whole / self.device.backward_attention_rate if backward else 1.0
        found, least, is_other, share = None, None, False, 1.0
        for dtype, name in product((*self.choices.attended, "bf16"), (str(width), *known)):
            key = ("attention", dtype, name)
            own = {**measured, "head_dim": np.float64(int(name))}
            causal = 2 * float(own["batch"] * own["heads"] * own["seq"] ** 2 * own["head_dim"])
            share = max(num_ops / (causal * whole), self.share_of_window(sizes))
            found, least = (
                self.measured.by_cache(key, cache, each) for each in (own, {**own, **LEAST})
            )
            if found is not None:
                is_other = dtype != self.choices.attends
                break
        if found is None or least is None:
            peak = self.device.peak("bf16") or 1.0
            return Price(
                max(1e6 * num_ops / peak, self.measured.moved(num_bytes).us), Basis.ROOFLINE
            )
        is_rule = backward or is_other or abs(share - 1) > 0.01
        basis = Basis.RULE if is_rule else found.basis
        converted = self.converted_us(sizes, backward) if self.choices.trains else 0.0
        us = stretched(found.us, least.us, share * slower)
        return Price(max(us, self.device.launch_us) + converted, basis)

    def trained_attention(
        self, num_ops: float, backward: bool, sizes: dict[str, np.float64], *windowed: str
    ) -> Price | None:
        """The time of attention by the table of a training kernel; None if there is none. Beyond the table's lengths, and forward with fewer heads than it has,
        the time changes as that of an inference engine's kernel of the same width does.

        Backward a kernel has a block of threads for each head and 128 keys, so that its time grows in proportion to the heads from where multiprocessors
        have as much to do as the longest block (`fewest_heads`). cuDNN takes 1,469, 837, 386, 204, 116 and 110 us with 128, 64, 32, 16, 8 and 4 heads of
        4,096 positions on B200 (SimuMax, `sdp_bwd`), and with 32 and 40 heads of 6,144 to 17,556 positions, without a mask, 0.96 to 1.09 of what 128 heads
        take for as many FLOPs on GB200 and GB300 (`cudnn-frontend` at 3929da2: `ltx2` and `wan22` beside `llama3.1`).

        With more heads the time grows in proportion, since those of the tables fill the device: on H100 cuDNN reaches 613 TFLOP/s with 32 heads of 128 and
        4,096 positions (`cudnn-frontend`), and with 64 an older release 518 (FlashAttention-3, figure 5), where an engine's kernel gains 15 % from 32 to 64.
        How many heads of queries share keys makes no difference without a window: on H200 cuDNN takes as long with 64 heads of queries and 8 of keys as with
        as many of both (`cudnn-frontend`, df73764 and de355c7). An engine's kernel, measured with what writes its cache, is 8 % faster where four share.
        Nor does it under a window where no engine's kernel was measured (mxfp8): in 8 bits a backward pass computes all positions, so that bytes do not decide.
        On GB300 it takes 0.79 ms for 128 heads of 4,096 positions of which eight share keys (fp8, df73764), and 1.48 ms for 256 that share none (3929da2).
        """
        whose = () if self.choices.trains == "cudnn" else (self.choices.trains,)
        step = f"{'backward' if backward else 'forward'} pass"
        width = int(sizes["head_dim"])
        # FlashAttention-2 multiplies heads between two widths that were measured as it does the wider.
        wider = [w for w in TRAINED_WIDTHS if w > width] if self.choices.trains == "flash2" else []
        keys = [
            ("attention", each, str(w), *windowed)
            for each in self.choices.attended
            for w in (width, *wider)
        ]
        key = next((each for each in keys if (*each, step, *whose) in self.device.tables), None)
        if key is None:
            return None
        table, dtype = self.device.tables[*key, step, *whose], key[1]
        kind = KINDS["attention"]
        pairs = score_pairs(sizes["seq"], sizes["seq"], sizes["window"])
        flops = 4 * sizes["batch"] * sizes["heads"] * pairs * sizes["head_dim"]
        share = num_ops / (flops * (BACKWARD_PRODUCTS / FORWARD_PRODUCTS if backward else 1.0))
        share = max(share, 0.0 if windowed else self.share_of_window(sizes))
        own = {**sizes, "cache_bytes": np.float64(bytes_per_element(dtype))}
        axes, engine = kind.axes(own), self.device.tables.get(key)

        def us(own: Sizes, by_heads: bool = False) -> float:
            axes = kind.axes(own)
            at = {x.name: np.clip(axes[x.name], 2**x.first, 2**x.last) for x in table.axes}
            at["heads"] = axes["heads"] if by_heads else np.maximum(axes["heads"], at["heads"])
            if engine is None or not windowed:
                axes["sharing"] = at["sharing"]
                own = {**own, "kv_heads": own["heads"] / at["sharing"]}
            changes = 1.0 if engine is None else engine.factor(axes) / engine.factor(at)
            return float(kind.rule(self.device, dtype, own) * table.factor(axes) * changes)

        covered = bool(table.covers(axes)) and abs(share - 1) < 0.01 and key[2] == str(width)
        fixed, by_heads = us({**own, **LEAST}), backward and not windowed
        alone = max(stretched(us(own, by_heads), fixed, share), self.device.launch_us)
        if by_heads:
            most = next(2.0**each.last for each in table.axes if each.name == "heads")
            heads = min(self.fewest_heads(own), most) / own["batch"]
            longest_block = us({**own, "heads": heads}, by_heads)
            alone = max(alone, stretched(longest_block, fixed, min(share, 1.0)))
        longest = alone + self.converted_us(sizes, backward)
        return Price(longest, Basis.MEASURED if covered else Basis.RULE)

    def fewest_heads(self, sizes: Sizes) -> float:
        """With how many heads of all sequences a multiprocessor has as much to do in a causal backward kernel as the longest block has, which goes over all
        queries, the mean one over half of them. A kernel with fewer heads takes as long.
        """
        return 2 * self.device.units / float(np.ceil(sizes["seq"] / BACKWARD_KEYS))

    def share_of_window(self, sizes: Sizes) -> float:
        """The time of attention whose queries look back to a window only, over that of attention to all positions; the fixed time counts in neither. It is
        larger than the share of pairs that the window leaves.

        Both times are from the tables of an engine's kernels. 0 if the window is no limit, or no table knows windows.
        """
        window = sizes.get("reach", sizes["keys"])
        if window >= sizes["keys"]:
            return 0.0
        key, all_positions = ("attention", "bf16", str(int(sizes["head_dim"]))), np.float64(0)
        whole = self.measured.by_cache(key, "", {**sizes, "window": all_positions})
        least = self.measured.by_cache(key, "", {**sizes, **LEAST, "window": all_positions})
        part = self.measured.by_cache((*key, "window"), "", {**sizes, "window": window})
        if whole is None or least is None or part is None:
            return 0.0
        more = whole.us - least.us
        return min(max(part.us - least.us, 0.0) / more, 1.0) if more > 0 else 1.0

    def converted_us(self, sizes: dict[str, np.float64], backward: bool) -> float:
        """The time in µs to convert what attention in 8 bits reads from bf16, and what it makes to bf16 (`FusedAttnFunc` of Transformer Engine 2).

        In fp8 queries, keys and values are converted in front of it and its output behind it, in the backward pass the gradient of the output and those of
        the three: as much in both directions (`combine_and_quantize`, `combine_and_dequantize`). In mxfp8 what it makes is bf16, and what it reads is
        written along rows and along columns, the three once for both passes (`mxfp8_quantize_fast_path`, release 2.16).
        """
        if self.choices.attends not in ("fp8", "mxfp8"):
            return 0.0
        of_head = sizes["batch"] * sizes["head_dim"]
        queries = of_head * sizes["seq"] * sizes["heads"]
        three = queries + 2 * of_head * sizes["keys"] * sizes.get("kv_heads", sizes["heads"])
        narrow = bytes_per_element(self.choices.attends)
        if self.choices.attends == "mxfp8":
            return self.measured.moved(
                float((WIDE_BYTES + 2 * narrow) * (queries if backward else three))
            ).us
        each = WIDE_BYTES + narrow
        return (
            self.measured.moved(float(each * three)).us
            + self.measured.moved(float(each * queries)).us
        )

    def resumed_attention(
        self, num_ops: float, num_bytes: float, kernel: Kernel, sizes: dict[str, np.float64]
    ) -> Price:
        """The time of attention from new positions to earlier ones as well: that of a causal prefill with as many pairs, or, if longer, of reading all keys
        for one token.
        """
        per_pair = 2 * (sizes["head_dim"] + sizes["value_dim"]) * sizes["batch"] * sizes["heads"]
        length = np.sqrt(2 * num_ops / per_pair)
        whole = {**sizes, "seq": np.maximum(length, 2), "keys": np.maximum(length, 2)}
        whole.pop("reach", None)
        computed = self.one_attention(num_ops, num_bytes, kernel, whole)
        one = {**sizes, "seq": np.float64(1)}
        read = self.decode(num_ops, num_bytes, self.choices.cache_of(kernel), one)
        longer = max(computed, read, key=lambda price: price.us)
        return Price(longer.us, max(longer.basis, Basis.RULE))

    def latent(
        self, num_ops: float, num_bytes: float, cache: str, sizes: dict[str, np.float64]
    ) -> Price:
        """The time of attention to DeepSeek's latent cache, by the table for one token. Several tokens of a sequence count as that many times the heads, as
        FlashMLA tiles them.
        """
        one = {"batch": sizes["batch"], "context": sizes["keys"]}
        heads = sizes["heads"] * sizes["seq"]
        key = ("decode_latent_attention", "bf16")
        found = self.measured.by_cache(key, cache, {**one, "heads": heads})
        if found is None:
            return self.measured.moved(num_bytes, num_ops)
        measured = 2 * float(one["batch"] * one["context"] * heads) * (2 * LATENT + ROTARY)
        share = num_ops / measured
        return Price(
            max(found.us * share, self.device.launch_us),
            max(found.basis, Basis.RULE) if share != 1 else found.basis,
        )

    def decode(self, num_ops: float, num_bytes: float, cache: str, sizes: Sizes) -> Price:
        """The time of attention from one token to a cache. Tables differ by the dtype of the cache alone: none are published by what kernels multiply in."""
        one = {**sizes, "context": sizes["keys"], "window": np.float64(0)}
        key = ("decode_attention", "bf16", str(int(sizes["head_dim"])))
        return self.measured.by_cache(key, cache, one) or self.measured.moved(num_bytes, num_ops)
