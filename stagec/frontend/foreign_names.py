"""What PyTorch, NumPy and einops spell in a way that this language has no word for, and what is written here."""

from __future__ import annotations

_CONTRACT = "`a @ b` multiplies and adds up over the dims that both have, whichever order they are in: nothing is transposed"
_ORDER = "dims have names, so their order is never changed: `a @ b` finds those that both have"
_SHAPE = "dims are cut with `split`, joined with `concat` and renamed with `x[S -> T]`; heads are a dim of their own: `x @ wq` with `wq[D, H, E]`"
_COMMUNICATION = "a model's text has no communication: a plan's rules (`shard H over tp`) insert it"
_SIGN = "write the sign between the operands, such as `a + b`"

_WRITTEN = {
    _CONTRACT: "matmul mm bmm dot einsum linear dense addmm tensordot",
    _ORDER: "T mT transpose permute swapaxes moveaxis contiguous",
    _SHAPE: "reshape view flatten unflatten rearrange squeeze unsqueeze chunk pad",
    _COMMUNICATION: "all_reduce all_gather reduce_scatter all_to_all broadcast send recv psum",
    _SIGN: "add sub subtract mul multiply div divide",
    "write `concat(a, b, over = (S, T), to = U)`: dims of both side by side": "cat stack hstack vstack",
    "write `attention(q, k, v)`": "scaled_dot_product_attention sdpa flash_attention flash_attn flash_attn_func flex_attention multi_head_attention",
    "write `cross_entropy(logits, targets)`": "nll_loss log_softmax softmax_cross_entropy",
    "write `silu(x @ gate) * (x @ up)`": "swiglu glu geglu silu_and_mul",
    "write `repeat_heads(x, heads = K, to = H)`; fused attention needs no copies": "repeat_kv repeat_interleave",
    "write `cast(x, dtype = bf16)`; a plan's `precision` chooses dtypes": "to type astype float half bfloat16",
    "write `a ** 2` of sizes, `square(x)` of tensors": "pow",
    "what is not trained is `freeze`d by the plan": "detach stop_gradient no_grad requires_grad_",
}
_HELP = {word: help_ for help_, words in _WRITTEN.items() for word in words.split()}


def written_here(word: str) -> str:
    """How this language says what `word` is elsewhere, or nothing."""
    return _HELP.get(word, "")
