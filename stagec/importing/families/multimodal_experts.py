"""Language models with experts that see: Llama 4, MiniMax-M3 and Step 3.7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    biases,
    by_kind,
    head_width,
    llama_attention,
    llama_mlp,
    windows,
)
from stagec.importing.families.experts import experts
from stagec.importing.families.multimodal import patches_of, qwen_patches, seeing, vit_blocks
from stagec.importing.families.rows import decoder, stream
from stagec.importing.parts import LAYER, NO_NORM, RMS, Norm, activated
from stagec.importing.routing import Router
from stagec.importing.text import Module, Writer
from stagec.importing.tower import IdleTower, Projector, Tower, linear, merge_patches

BARE = Norm("rms", affine=False)


def llama4_text(c: Config, stem: str = "model.") -> Decoder:
    s = stream(c)
    layers = c.number("num_hidden_layers")
    every = c.number("no_rope_layer_interval", 4)
    turned = c.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]
    step = c.number("interleave_moe_layer_step")
    sparse = c.get("moe_layers")
    sparse = list(range(step - 1, layers, step)) if sparse is None else sparse
    layer = f"{stem}layers.{{i}}."
    on: dict[str, Any] = {"stem": f"{layer}self_attn.", **biases(c.flag("attention_bias"))}
    bare = BARE if c.flag("use_qk_norm") else NO_NORM
    chunk = c.count("attention_chunk_size")
    near = llama_attention(
        c,
        s,
        name="LocalAttention",
        about="A query sees the keys of its chunk of the sequence.",
        window=chunk,
        chunked=True,
        qk_norm=bare,
        norm_after_rope=True,
        **on,
    )
    far = llama_attention(c, s, rotary=0, **on)
    mlp = llama_mlp(c, s, hidden=c.number("intermediate_size_mlp"), stem=f"{layer}feed_forward.")
    moe = experts(
        c,
        s,
        Router("sigmoid", tensor="router.weight"),
        experts=c.number("num_local_experts"),
        hidden=c.number("intermediate_size"),
        stem=f"{layer}feed_forward.",
        shared=llama_mlp(
            c,
            s,
            name="Shared",
            stem=f"{layer}feed_forward.shared_expert.",
            letter="FS",
            what="feed-forward width of the shared expert",
        ),
    )
    blocks = [
        Block(
            near if turned[i] else far,
            moe if i in sparse else mlp,
            RMS,
            name=("Local" if turned[i] else "") + ("Block" if i in sparse else "Dense"),
            stem=layer,
            stream=s,
        )
        for i in range(layers)
    ]
    return decoder(c, "Llama4", blocks, prefix=stem)


def llama4(c: Config) -> Decoder:
    text = llama4_text(c.part("text_config", "llama4_text"), "language_model.model.")
    text = replace(text, head="language_model.lm_head")
    v = c.part("vision_config", "llama4_vision_model")
    side, patch, ratio = (
        v.number("image_size"),
        v.number("patch_size"),
        v.get("pixel_shuffle_ratio"),
    )
    together = round(1 / ratio**2)
    width, num = v.number("hidden_size"), patches_of(v, side)
    stem = "vision_model.model.layers.{i}."
    blocks = vit_blocks(
        v,
        stem,
        v.number("num_hidden_layers"),
        LAYER,
        ("input_layernorm", "post_attention_layernorm"),
        {**biases(True), "rotary": -1},
        {},
        sequence="PO",
    )
    tower = Tower(
        width,
        blocks,
        num,
        "vision_model.patch_embedding.linear",
        (v.number("num_channels"), 1, patch, patch),
        class_token="vision_model.class_embedding",
        class_last=True,
        places="vision_model.positional_embedding_vlm",
        num_places=num + 1,
        first_norm=(LAYER, "vision_model.layernorm_pre"),
        last_norm=(LAYER, "vision_model.layernorm_post"),
    )
    adapter = "vision_model.vision_adapter.mlp."
    inner, out = v.number("intermediate_size"), v.number("projector_output_dim")
    between, seen = v.number("projector_input_dim"), v.number("vision_output_dim")
    fits = together * width == inner and out == seen
    if between != out:
        message = "`projector_input_dim` and `projector_output_dim` are one width in this class"
        keys = ("projector_input_dim", "projector_output_dim")
        raise v.unsupported(message, *keys, help=f"write {out} and {out}")

    def project(w: Writer, m: Module) -> str:
        m.line("x, _token = split(x, over = PO, to = [P, O])")
        DM = (
            merge_patches(w, m, "x", together, "M", width)
            if fits
            else w.dim("DI", inner, "input of the adapter")
        )
        DJ = w.dim("DJ", between, "width within the adapter")
        DO = w.dim("DO", out, "width of what it makes")
        hidden = linear(m, "m", "adapter1", f"{DM} {DJ}", f"{adapter}fc1", False)
        made = linear(
            m, activated("gelu", hidden), "adapter2", f"{DJ} {DO}", f"{adapter}fc2", False
        )
        m.line(f"y = {activated('gelu', made)}")
        DS = DO if fits else w.dim("DS", seen, "input of the projector")
        return linear(m, "y", "linear", f"{DS} D", "multi_modal_projector.linear_1", False)

    projector = Projector(project, num // together)
    if not fits:
        reason = f"The tower makes vectors of {together * width} and of {out}, and what follows reads {inner} and {seen}"
        return replace(text, before=IdleTower(tower, projector, reason))
    return replace(text, tower=tower, projector=projector)


# MiniMax-M3


@dataclass(frozen=True)
class IndexedAttention(Attention):
    """Attention to blocks of keys, which an indexer of a few heads chooses."""

    index_heads: int = 0
    index_width: int = 0
    block: int = 0
    blocks: int = 0

    def write(self, w: Writer) -> str:
        index = self.write_indexer(w)
        name = super().write(w)
        m = w.modules[name]
        m.call(index)
        m.lines.insert(0, f"_chosen = {index}(x)")
        return name

    @property
    def local(self) -> bool:
        return False  # any block may be chosen again

    def write_indexer(self, w: Writer) -> str:
        """Scores of all keys; the largest of each block; the blocks with the largest."""
        s = self.stream
        I = w.dim("I", self.index_heads, "heads of the indexer")
        J = w.dim("J", self.index_width, "their width")
        U = w.positions()
        NB = w.dim("NB", 0, "blocks of keys", f"{U} / {self.block}")
        Y = w.dim("Y", 0, "blocks that are left", f"min({self.blocks}, NB)")
        stem = self.stem + "indexer."
        w.op(
            "best_of_block",
            f"# The largest score of each block of {self.block} keys.\n"
            f"op best_of_block(scores[{s.rows}, {U}, {I}]) -> [{s.rows}, {I}, {NB}] {{\n"
            f"  flops = 0\n  bytes = 2 * {s.rows.replace(', ', ' * ')} * {I} * ({U} + {NB})\n}}\n",
        )
        x = w.module("Indexer", f"x{s.shape}", f"[{s.rows}, {I}, {Y}]: i32")
        x.about = "Scores of narrow heads say which blocks of keys a query sees."
        x.weight("q_proj", f"{s.dim} {I} {J}", f"{stem}q_proj.weight")
        x.weight("k_proj", f"{s.dim} {J}", f"{stem}k_proj.weight", join=True)
        x.weight("q_norm", J, f"{stem}q_norm.weight")
        x.weight("k_norm", J, f"{stem}k_norm.weight", join=True)
        x.line("q = rope(rms_norm(x @ q_proj, q_norm))")
        x.cache("keys", s.batch, U, J)
        x.line(f"k[{s.batch}, {U}, {J}] = append(keys, rope(rms_norm(x @ k_proj, k_norm)))")
        x.line(f"scores[{s.rows}, {U}, {I}] = q @ k")
        x.line(f"seen = causal_mask(scores, query = {s.sequence}, key = {U})")
        x.line(f"_, chosen = topk(best_of_block(seen), over = {NB}, to = {Y})")
        x.line("return chosen")
        return x.name


def minimax_m3_text(c: Config) -> Decoder:
    s = stream(c)
    width = head_width(c)
    sparse_attention = c.get("sparse_attention_config", {})

    def index(key: str, legacy: str) -> int:
        return int(sparse_attention[legacy]) if legacy in sparse_attention else c.number(key)

    turned = c.count("rotary_dim")
    on: dict[str, Any] = {"qk_norm": RMS, "rotary": turned if turned and turned != width else -1}
    attention = llama_attention(c, s, **on)
    block, blocks = (
        index("index_block_size", "sparse_block_size"),
        index("index_topk_blocks", "sparse_topk_blocks"),
    )
    indexed = IndexedAttention(
        **{f: getattr(attention, f) for f in attention.__dataclass_fields__}
        | {
            "name": "SparseAttention",
            "about": f"A query sees {blocks} blocks of {block} keys: as many as a window of that length has.",
            "window": block * blocks,
        },
        index_heads=index("index_n_heads", "sparse_num_index_heads"),
        index_width=index("index_head_dim", "sparse_index_dim"),
        block=block,
        blocks=blocks,
    )
    layers = c.number("num_hidden_layers")
    kinds = c.layer_types()
    if kinds is None:
        given = sparse_attention.get("sparse_attention_freq", [0] * layers)
        kinds = ["minimax_m3_sparse" if f else "full_attention" for f in given]
    networks = c.get("mlp_layer_types")
    if networks is None:
        networks = ["sparse" if f else "dense" for f in c.get("moe_layer_freq", [1] * layers)]
    stem = "model.layers.{i}.mlp."
    fused = {"gate": "gate_up_proj", "up": "gate_up_proj", "act": "silu"}
    mlp = llama_mlp(c, s, hidden=c.number("dense_intermediate_size"), **fused)
    moe = experts(
        c,
        s,
        Router(
            "sigmoid",
            normalise=True,
            factor=c.real("routed_scaling_factor"),
            correction="gate.e_score_correction_bias",
        ),
        experts=c.number("num_local_experts"),
        hidden=c.number("intermediate_size"),
        act="gpt_oss",
        shared=llama_mlp(
            c,
            s,
            hidden=c.number("shared_intermediate_size"),
            name="Shared",
            stem=f"{stem}shared_experts.",
            letter="FS",
            what="feed-forward width of the shared expert",
            **fused,
        ),
    )
    mixers = by_kind(c, kinds[:layers], {"minimax_m3_sparse": indexed, "full_attention": attention})
    made = [
        Block(
            mixer,
            moe if network == "sparse" else mlp,
            RMS,
            name=("Sparse" if mixer is indexed else "")
            + ("Block" if network == "sparse" else "Dense"),
            stream=s,
        )
        for mixer, network in zip(mixers, networks[:layers], strict=True)
    ]
    return decoder(c, "MiniMaxM3", made)


def minimax_m3_vl(c: Config) -> Decoder:
    text = seeing(c, minimax_m3_text(c.part("text_config", "minimax_m3_vl_text")))
    v = c.part("vision_config", "minimax_m3_vl_vision")
    compression = v.get("img_token_compression_config", {})
    merge = int(compression.get("spatial_merge_size", v.get("spatial_merge_size")))
    frames = int(compression.get("temporal_patch_size", v.get("temporal_patch_size")))
    stem = "model.vision_tower.layers.{i}."
    blocks = vit_blocks(
        v,
        stem,
        v.number("num_hidden_layers"),
        LAYER,
        ("layer_norm1", "layer_norm2"),
        {"o": "out_proj", **biases(True), "rotary": -1},
        {},
    )
    num, patch = qwen_patches(v, merge), v.number("patch_size")
    tower = Tower(
        v.number("hidden_size"),
        blocks,
        num,
        "model.vision_tower.embeddings.proj",
        (v.number("num_channels"), frames, patch, patch),
        first_norm=(LAYER, "model.vision_tower.pre_layrnorm"),
    )
    p = "model.multi_modal_projector."
    inner = c.number("projector_hidden_size")

    def project(w: Writer, m: Module) -> str:
        DH = w.dim("DH", inner, "hidden width of the projector")
        hidden = linear(m, "x", "linear1", f"DV {DH}", f"{p}linear_1", True)
        m.line(
            f"y = {linear(m, activated('gelu', hidden), 'linear2', f'{DH} D', f'{p}linear_2', True)}"
        )
        DM = w.dim(
            "DM", merge**2 * w.dims["D"].value, "width of tokens side by side", f"{merge**2} * D"
        )
        w.op(
            "side_by_side",
            f"# {merge**2} neighbouring tokens as one vector: a copy.\n"
            f"op side_by_side(y[B, P, D]) -> [B, M, {DM}] {{\n  flops = 0\n  bytes = 4 * B * P * D\n  backward_reads = []\n}}\n",
        )
        merged = linear(m, "side_by_side(y)", "merge1", f"{DM} {DH}", f"{p}merge_linear_1", True)
        return linear(m, activated("gelu", merged), "merge2", f"{DH} D", f"{p}merge_linear_2", True)

    return replace(text, tower=tower, projector=Projector(project, num // merge**2))


# Step 3.7


def step3p5_text(c: Config) -> Decoder:
    s = stream(c)
    layers = c.number("num_hidden_layers")
    kinds = list(c.layer_types() or ["full_attention"] * layers)[:layers]
    window = c.count("sliding_window")
    local = windows(c, kinds, 1)
    far = llama_attention(c, s, qk_norm=RMS, head_gate="g_proj", **biases(c.flag("attention_bias")))
    heads = c.number("num_sliding_attention_heads", far.heads)
    near = replace(far, name="LocalAttention", window=window, heads=heads)
    enumerated = c.get("moe_layers_enum")
    if isinstance(enumerated, str):
        enumerated = [int(i) for i in enumerated.split(",") if i.strip()]
    given = c.get("mlp_layer_types")
    sparse = (
        [kind == "sparse" for kind in given[:layers]]
        if given
        else [
            i in (enumerated if enumerated is not None else range(3, layers)) for i in range(layers)
        ]
    )
    stem = "model.layers.{i}.mlp."
    mlp = llama_mlp(c, s, bias=c.flag("mlp_bias"))
    moe = experts(
        c,
        s,
        Router(
            "sigmoid",
            normalise=True,
            factor=c.real("moe_router_scaling_factor"),
            correction="gate.e_score_correction_bias",
        ),
        experts=c.number("n_routed_experts"),
        shared=llama_mlp(
            c,
            s,
            bias=c.flag("mlp_bias"),
            hidden=c.number("share_expert_dim"),
            name="Shared",
            stem=f"{stem}shared_experts.",
            letter="FS",
            what="feed-forward width of the shared expert",
        ),
    )
    blocks = []
    for close, each in zip(local, sparse, strict=True):
        name = ("Local" if close else "") + ("Block" if each else "Dense")
        blocks.append(Block(near if close else far, moe if each else mlp, RMS, name=name, stream=s))
    return decoder(c, "Step37", blocks)


def step3p7(c: Config) -> Decoder:
    """Keys of the language model beside `text_config` are not read by the class."""
    text = seeing(c, step3p5_text(c.part("text_config", "step3p5")))
    v = c.part("vision_config", "step3p5_vision")
    width = v.number("hidden_size")
    more = {"intermediate_size": int(width * v.get("mlp_ratio"))}
    v = Config.of({**v.data, **more}, "step3p5_vision", v.path, v.asked)
    stem = "model.vision_model.layers.{i}."
    blocks = vit_blocks(
        v,
        stem,
        v.number("num_hidden_layers"),
        LAYER,
        ("layernorm_before", "layernorm_after"),
        {"o": "out_proj", **biases(True), "rotary": -1},
        {},
        scales=("lambda_1", "lambda_2"),
    )
    patch, side = v.number("patch_size"), v.number("image_size")
    num = (side // patch) ** 2
    tower = Tower(
        width,
        blocks,
        num,
        "model.vision_model.embeddings.patch_embedding",
        (v.number("num_channels"), 1, patch, patch),
        side=side,
        places="model.vision_model.embeddings.position_embedding.weight",
        num_places=num,
        first_norm=(LAYER, "model.vision_model.pre_layernorm"),
    )
    if (side // patch) % 4:
        message = f"rows of {side // patch} patches are not halved twice"
        help_ = f"choose a multiple of {4 * patch}"
        raise v.unsupported(message, "image_size", "patch_size", help=help_)
    tokens = num // 16

    def project(w: Writer, m: Module) -> str:
        w.dim("KW", 3, "rows of a filter")
        w.dim("KH", 3, "and its columns")
        P2 = w.dim("P2", num // 4, "patches after one step down", "P / 4")
        w.images.append(P2)
        D2 = w.dim("DV2", 2 * width, "their width", "2 * DV")
        D4 = w.dim("DV4", 4 * width, "width after another", "4 * DV")
        for name, before, into, after, out in (
            ("down1", "P", "DV", P2, D2),
            ("down2", P2, D2, "M", D4),
        ):
            w.op(
                f"{name[:-1]}{name[-1]}",
                "# Filters of three by three that move on by two.\n"
                f"op {name}(x[B, {before}, {into}], kernel[KW, KH, {into}, {out}]) -> [B, {after}, {out}] {{\n"
                f"  flops = 2 * B * {after} * KW * KH * {into} * {out}\n"
                f"  bytes = 2 * (B * {before} * {into} + B * {after} * {out} + 9 * {into} * {out})\n}}\n",
            )
        stem = "model.vision_model.downsampler"
        m.weight("filter1", f"KW KH DV {D2}", f"{stem}1.weight")
        m.weight("filter1_bias", D2, f"{stem}1.bias", join=True)
        m.weight("filter2", f"KW KH {D2} {D4}", f"{stem}2.weight")
        m.weight("filter2_bias", D4, f"{stem}2.bias", join=True)
        m.line("y = down1(x, filter1) + filter1_bias")
        m.line("y = down2(y, filter2) + filter2_bias")
        bias = c.flag("projector_bias")
        return linear(m, "y", "linear", f"{D4} D", "model.multi_modal_projector", bias)

    return replace(text, tower=tower, projector=Projector(project, tokens))


MULTIMODAL_EXPERTS: dict[str, Callable[[Config], Decoder]] = {
    "llama4": llama4,
    "llama4_text": llama4_text,
    "minimax_m3_vl": minimax_m3_vl,
    "minimax_m3_vl_text": minimax_m3_text,
    "step3p7": step3p7,
}
