"""DeepSeek's attention over latent vectors, with the indexer of its sparse form if there is one."""

from __future__ import annotations

from dataclasses import dataclass

from stagec.importing.parts import Stream, head_name, tower_text
from stagec.importing.text import Module, Writer


@dataclass(frozen=True)
class Indexer:
    """Chooses the keys that a query sees, by scores of a few narrow heads (DeepSeek-V3.2, section 2.1)."""

    heads: int
    width: int
    keys: int
    """How many keys are chosen."""


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    stream: Stream
    heads: int
    plain: int
    """Width of a head's queries and keys without position,"""
    rotated: int
    """and of their rotated part."""
    values: int
    latent: int
    query_latent: int = 0
    """0: queries are made of the input itself."""
    bias: bool = False
    rotary: bool = True
    head_gate: str = ""
    """The tensor of a gate for each head."""
    name: str = "Attention"
    stem: str = "model.layers.{i}.self_attn."
    indexer: Indexer | None = None
    chosen_keys: int = 0
    """How many keys a query sees that an indexer chose, here or in a layer before."""

    def write(self, w: Writer) -> str:
        s = self.stream
        H = w.dim(head_name(s, "H"), self.heads, tower_text(s, "heads"))
        w.heads.append(H)
        N = w.dim(
            head_name(s, "N"), self.plain, "width of a head's queries and keys without position,"
        )
        R = w.dim(head_name(s, "R"), self.rotated, "and of their rotated part")
        E = w.dim(head_name(s, "E"), self.plain + self.rotated, "both together", f"{N} + {R}")
        G = w.dim(head_name(s, "G"), self.values, "width of a head's values")
        C = w.dim(head_name(s, "C"), self.latent, "width of the latent keys and values,")
        CR = w.dim(
            "CR", self.latent + self.rotated, "beside the rotated key of all heads", f"{C} + {R}"
        )
        about = "Keys and values, and queries, by way of narrow latent vectors."
        if not self.query_latent:
            about = "Keys and values by way of a narrow latent vector."
        if self.chosen_keys:
            about += f"\nA query sees the {self.chosen_keys:,} keys that an indexer chose: as many as a window of that length has."
        m = w.module(self.name, f"x{s.shape}", s.shape, about)
        stem = self.stem
        Q = ""
        if self.query_latent:
            Q = w.dim(head_name(s, "Q"), self.query_latent, "width of the latent queries")
            m.weight("q_a_proj", f"{s.dim} {Q}", f"{stem}q_a_proj.weight")
            m.weight("q_a_norm", Q, f"{stem}q_a_layernorm.weight", join=True)
            m.weight("q_b_proj", f"{Q} {H} {E}", f"{stem}q_b_proj.weight", join=True)
        else:
            m.weight("q_proj", f"{s.dim} {H} {E}", f"{stem}q_proj.weight")
        m.weight("kv_a_proj", f"{s.dim} {CR}", f"{stem}kv_a_proj_with_mqa.weight")
        m.weight("kv_a_norm", C, f"{stem}kv_a_layernorm.weight", join=True)
        m.weight("k_b_proj", f"{C} {H} {N}", f"{stem}kv_b_proj.weight")
        m.weight("v_b_proj", f"{C} {H} {G}", f"{stem}kv_b_proj.weight", join=True)
        m.weight("o_proj", f"{H} {G} {s.dim}", f"{stem}o_proj.weight", join=True)
        plus = {"q_a": "", "kv_a": "", "o": ""}
        if self.bias:
            names = [("kv_a", CR, "kv_a_proj_with_mqa"), ("o", s.dim, "o_proj")]
            if self.query_latent:
                names.insert(0, ("q_a", Q, "q_a_proj"))
            for key, dims, tensor in names:
                m.weight(f"{key}_bias", dims, f"{stem}{tensor}.bias", join=key != names[0][0])
                plus[key] = f" + {key}_bias"
        source = "x @ q_proj"
        if self.query_latent:
            m.line(f"narrow = rms_norm(x @ q_a_proj{plus['q_a']}, q_a_norm)")
            source = "narrow @ q_b_proj"
        m.line(f"near, far = split({source}, over = {E}, to = [{N}, {R}])")
        m.line(f"latent, shared = split(x @ kv_a_proj{plus['kv_a']}, over = {CR}, to = [{C}, {R}])")
        T = w.positions()
        m.cache("latents", s.batch, T, C)
        m.cache("rotated", s.batch, T, R)
        m.line(f"latent[{s.batch}, {T}, {C}] = append(latents, rms_norm(latent, kv_a_norm))")
        far, shared = ("rope(far)", "rope(shared)") if self.rotary else ("far", "shared")
        m.line(f"q = concat(near, {far}, to = {E})")
        m.line(f"k = concat(latent @ k_b_proj, append(rotated, {shared}), to = {E})")
        m.line(f"v[{s.batch}, {T}, {H}, {G}] = latent @ v_b_proj")
        if self.indexer:
            m.line(
                f"_chosen = {self.write_indexer(w, m)}(x, {'narrow' if self.query_latent else 'x'})"
            )
        window = ""
        if self.chosen_keys:
            window = f", window = {self.chosen(w)}"
        core = f"attention(q, k, v, causal = true{window})"
        if self.head_gate:
            m.weight("head_gate", f"{s.dim} {H}", f"{stem}{self.head_gate}.weight")
            core = f"({core} * sigmoid(x @ head_gate))"
        m.line(f"return {core} @ o_proj{plus['o']}")
        return m.name

    def chosen(self, w: Writer) -> str:
        return w.dim("W", self.chosen_keys, "keys that are chosen for a query")

    def write_indexer(self, w: Writer, m: Module) -> str:
        """Scores of all keys by narrow heads, weighted for each query; the keys with the largest."""
        s, each = self.stream, self.indexer
        assert each is not None
        I = w.dim("I", each.heads, "heads of the indexer")
        J = w.dim("J", each.width, "their width")
        T = w.positions()
        Y = w.dim("Y", each.keys, "keys that are left", f"min({self.chosen(w)}, {T})")
        Q = w.dim(head_name(s, "Q"), self.query_latent, "width of the latent queries")
        stem = self.stem + "indexer."
        x = w.module("Indexer", f"x{s.shape}, narrow[{s.rows}, {Q}]", f"[{s.rows}, {Y}]: i32")
        x.about = "Scores of narrow heads say which keys a query sees."
        x.weight("q_proj", f"{Q} {I} {J}", f"{stem}wq_b.weight")
        x.weight("k_proj", f"{s.dim} {J}", f"{stem}wk.weight", join=True)
        x.weight("k_norm", J, f"{stem}k_norm.weight")
        x.weight("k_norm_bias", J, f"{stem}k_norm.bias", join=True)
        x.weight("weights_proj", f"{s.dim} {I}", f"{stem}weights_proj.weight", join=True)
        x.line("q = rope(narrow @ q_proj)")
        x.cache("keys", s.batch, T, J)
        key = "rope(layer_norm(x @ k_proj, k_norm, k_norm_bias))"
        x.line(f"k[{s.batch}, {T}, {J}] = append(keys, {key})")
        x.line(f"scores[{s.rows}, {T}, {I}] = q @ k")
        x.line(f"weighted[{s.rows}, {T}] = relu(scores) @ (x @ weights_proj)")
        x.line(f"seen = causal_mask(weighted, query = {s.sequence}, key = {T})")
        x.line(f"_, chosen = topk(seen, over = {T}, to = {Y})")
        x.line("return chosen")
        m.call(x.name)
        return x.name
