"""Language models that see: a decoder after a tower and a projector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from stagec.diagnostics import did_you_mean, suggestion
from stagec.importing.attention import Attention
from stagec.importing.config import Config, shown
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import activation, biases, divided, square
from stagec.importing.families.deepseek import DEEPSEEK_V3
from stagec.importing.families.dense import DENSE
from stagec.importing.families.experts import EXPERTS, QWEN3_MOE
from stagec.importing.families.mixed import MIXED
from stagec.importing.families.rows import Decoders
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import LAYER, RMS, Norm, activated
from stagec.importing.routing import Router
from stagec.importing.text import Module, Writer
from stagec.importing.tower import (
    IdleTower,
    Projector,
    Tower,
    linear,
    merge_patches,
    mlp_projector,
    vision_stream,
)

TEXTS: Decoders = {
    **{name: DENSE[name] for name in ("llama", "mistral", "ministral3", "qwen2", "qwen3")},
    **{name: DENSE[name] for name in ("gemma", "gemma2", "gemma3_text")},
    **{name: DENSE[name] for name in ("cohere", "cohere2", "smollm3")},
    **{name: EXPERTS[name] for name in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss")},
    **{name: MIXED[name] for name in ("lfm2", "lfm2_moe")},
    "deepseek_v3": DEEPSEEK_V3,
    "kimi_k2": DEEPSEEK_V3,
}
"""Decoders that stand behind towers of any kind."""


TIED_BY_TEXT = (
    "llava",
    "llava_onevision",
    "qwen2_vl",
    "qwen2_5_vl",
    "minimax_m3_vl",
    "glm4v",
    "glm4v_moe",
)
"""Classes whose head is tied if `text_config` says so, as files of older versions do."""


def text_decoder(c: Config) -> Decoder:
    """The decoder that `text_config` describes, under the names that it has there."""
    part = c.part("text_config")
    if part.model_type not in TEXTS:
        message = f"a language model `{part.model_type}` behind a tower is not imported"
        help_ = did_you_mean(part.model_type, TEXTS)
        raise part.unsupported(message, "model_type", help=help_)
    return seeing(c, TEXTS[part.model_type](part))


def seeing(
    c: Config, text: Decoder, old: str = "model.", new: str = "model.language_model."
) -> Decoder:
    """A decoder under the names that it has beside a tower. Whether the head is tied, the whole says, of some classes its text as well."""
    either = c.model_type in TIED_BY_TEXT and text.tied
    return replace(moved_to(text, old, new), tied=c.flag("tie_word_embeddings") or either)


def moved_to(value: Any, old: str, new: str) -> Any:
    """The same with all tensors' names moved."""
    if isinstance(value, str):
        return new + value[len(old) :] if value.startswith(old) else value
    if isinstance(value, list | tuple):
        return type(value)(moved_to(v, old, new) for v in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: moved_to(getattr(value, f.name), old, new) for f in fields(value)}
        return replace(value, **changed)
    return value


def vit_blocks(
    v: Config,
    stem: str,
    layers: int,
    norm: Norm,
    norms: tuple[str, ...],
    attention: Mapping[str, Any],
    mlp: Mapping[str, Any],
    **more: Any,
) -> list[Block]:
    """Layers of a tower: attention of all patches to all, and a feed-forward network."""
    width = v.number("hidden_size")
    heads = v.number("num_attention_heads")
    sequence = more.pop("sequence", "P")
    name = more.pop("block_name", "VisionBlock")
    s = replace(vision_stream(width, sequence), dim=more.pop("dim", "DV"))
    settings: dict[str, Any] = {
        "kv_heads": heads,
        "width": divided(width, heads, "heads", v),
        "causal": False,
        "rotary": 0,
        "name": "VisionAttention",
        "stem": f"{stem}self_attn.",
        **attention,
    }
    part = Attention(s, heads, **settings)
    network: dict[str, Any] = {
        "gated": False,
        "bias": True,
        "name": "VisionMlp",
        "stem": f"{stem}mlp.",
        "up": "fc1",
        "down": "fc2",
        **mlp,
    }
    if "hidden" not in network:
        network["hidden"] = v.number("intermediate_size")
    if "act" not in network:
        network["act"] = activation(v)
    block = Block(
        part,
        Mlp(s, **network),
        norm,
        name=name,
        norms=norms,
        stem=stem,
        stream=s,
        **more,
    )
    return [block] * layers


def patches_of(v: Config, side: int) -> int:
    patch = v.number("patch_size")
    if side < patch:
        message = f"an image of {side} rows has no patch of {patch}"
        raise v.unsupported(message, "image_size", "patch_size", help="choose smaller patches")
    return (side // patch) ** 2


def clip_tower(v: Config, stem: str, layers: int | None = None, **more: Any) -> Tower:
    """CLIP's image encoder: a class token before the patches (Radford et al., arXiv:2103.00020)."""
    side, patch = v.number("image_size"), v.number("patch_size")
    num = patches_of(v, side)
    blocks = vit_blocks(
        v,
        f"{stem}encoder.layers.{{i}}.",
        layers or v.number("num_hidden_layers"),
        LAYER,
        ("layer_norm1", "layer_norm2"),
        {"o": "out_proj", **biases(True)},
        {},
        sequence="PO",
    )
    settings: dict[str, Any] = {
        "side": side,
        "class_token": f"{stem}embeddings.class_embedding",
        "places": f"{stem}embeddings.position_embedding.weight",
        "num_places": num + 1,
        "first_norm": (LAYER, f"{stem}pre_layrnorm"),
        "last_norm": (LAYER, f"{stem}post_layernorm"),
    }
    pixels = (v.number("num_channels"), 1, patch, patch)
    kernel = f"{stem}embeddings.patch_embedding"
    return Tower(v.number("hidden_size"), blocks, num, kernel, pixels, **(settings | more))


def siglip_tower(v: Config, stem: str, pools: bool = True, **more: Any) -> Tower:
    """SigLIP's image encoder, without a class token (Zhai et al., arXiv:2303.15343). That of SigLIP 2 is given patches.

    `pools`: whether the class has a head that pools patches unless the file says otherwise."""
    patch = v.number("patch_size")
    side = 0 if v.model_type == "siglip2_vision_model" else v.number("image_size")
    num = patches_of(v, side) if side else v.number("num_patches")
    head = pooling_head(v, f"{stem}head.") if pools and v.flag("vision_use_head", True) else None
    blocks = vit_blocks(
        v,
        f"{stem}encoder.layers.{{i}}.",
        v.number("num_hidden_layers"),
        LAYER,
        ("layer_norm1", "layer_norm2"),
        {"o": "out_proj", **biases(True)},
        {},
    )
    return Tower(
        v.number("hidden_size"),
        blocks,
        num,
        f"{stem}embeddings.patch_embedding",
        (v.number("num_channels"), 1, patch, patch),
        side=side,
        kernel_bias=True,
        places=f"{stem}embeddings.position_embedding.weight",
        num_places=num,
        last_norm=(LAYER, f"{stem}post_layernorm"),
        head=head,
        **more,
    )


def pooling_head(v: Config, stem: str) -> Callable[[Writer], str]:
    """A query that is trained reads all patches: `[B, P, DV]` as `[B, OP, DV]`."""
    stream = vision_stream(v.number("hidden_size"), "OP")
    mlp = Mlp(
        stream,
        v.number("intermediate_size"),
        activation(v),
        gated=False,
        bias=True,
        name="PoolingMlp",
        stem=f"{stem}mlp.",
        up="fc1",
        down="fc2",
    )

    def write(w: Writer) -> str:
        w.images.append(w.dim("OP", 1, "a query that reads all patches"))
        w.images.append(w.dim("PQ", w.dims["P"].value + 1, "patches and this query", "OP + P"))
        m = w.module("PoolingHead", "x[B, P, DV]", "[B, OP, DV]")
        m.about = "A query that is trained reads all patches."
        network = m.call(w.part(mlp))
        m.weight("probe", "OP DV", f"{stem}probe")
        made = {}
        for letter in "qkv":
            m.weight(f"{letter}_proj", "DV HV EV", f"{stem}attention.in_proj_weight")
            m.weight(f"{letter}_bias", "HV EV", f"{stem}attention.in_proj_bias", join=True)
            made[letter] = f"{'probes' if letter == 'q' else 'x'} @ {letter}_proj + {letter}_bias"
        m.line(
            "probes, _patches = split(concat(probe, x, over = [OP, P], to = PQ), over = PQ, to = [OP, P])"
        )
        tensor = f"{stem}attention.out_proj"
        core = f"attention({', '.join(made.values())})"
        m.line(f"y = {linear(m, core, 'out_proj', 'HV EV DV', tensor, True)}")
        m.line(f"return y + {network}({LAYER.of(m, 'y', 'norm', 'DV', f'{stem}layernorm')})")
        return m.name

    return write


def tower_of_llava(c: Config) -> tuple[Tower, str]:
    """The tower of LLaVA and its kin, and where the token stands that is no patch: `first` or nowhere."""
    v = c.part("vision_config")
    layer = c.get("vision_feature_layer")
    layers = v.number("num_hidden_layers")
    if not isinstance(layer, int):
        message = f"`vision_feature_layer` is {shown(layer)}, not one layer"
        raise c.unsupported(message, "vision_feature_layer", help="write the number of one layer")
    kept = (layer if layer >= 0 else layers + 1 + layer) - 1
    keep = () if kept == layers - 1 else (kept,)
    whole = c.get("vision_feature_select_strategy") == "full"
    stem = "model.vision_tower."
    if v.model_type == "clip_vision_model":
        if whole:
            message = "the class token as a token of the language model is not imported"
            raise c.unsupported(message, "vision_feature_select_strategy")
        return clip_tower(v, stem, keep=keep), "first"
    if v.model_type not in ("siglip_vision_model", "pixtral"):
        message = f"a tower of the kind `{v.model_type}` is not imported in this class"
        known = ("clip_vision_model", "siglip_vision_model", "pixtral")
        raise v.unsupported(message, "model_type", help=suggestion(v.model_type, known))
    if not whole:
        message = "a tower without a class token has no token to leave out"
        help_ = 'write `"vision_feature_select_strategy": "full"`'
        raise c.unsupported(message, "vision_feature_select_strategy", help=help_)
    if v.model_type == "siglip_vision_model":
        return siglip_tower(v, stem, keep=keep), ""
    return pixtral_tower(v, stem, 1, keep=keep), ""


def llava(c: Config) -> Decoder:
    tower, class_token = tower_of_llava(c)
    projector = Projector(
        mlp_projector(
            activation(c, "projector_hidden_act"),
            "model.multi_modal_projector.linear_1",
            "model.multi_modal_projector.linear_2",
            c.flag("multimodal_projector_bias", True),
            class_token,
        ),
        tower.num_patches,
    )
    text = text_decoder(c)
    return replace(text, name="Llava", tower=tower, projector=projector)


def gemma3(c: Config) -> Decoder:
    text = seeing(c, DENSE["gemma3_text"](c.part("text_config", "gemma3_text")))
    v = c.part("vision_config", "siglip_vision_model")
    tower = siglip_tower(v, "model.vision_tower.")
    tokens = c.number("mm_tokens_per_image")
    stem = "model.multi_modal_projector."

    def project(w: Writer, m: Module) -> str:
        m.line(f"m = {pooled(w, 'x', tower.num_patches // tokens)}")
        m.weight("norm", "DV", f"{stem}mm_soft_emb_norm.weight")
        m.weight("linear", "DV D", f"{stem}mm_input_projection_weight", join=True)
        return "rms_norm(m, norm) @ linear"

    return replace(text, name="Gemma3", tower=tower, projector=Projector(project, tokens))


def pooled(w: Writer, x: str, together: int) -> str:
    """The mean of neighbouring patches: `[B, P, DV]` as `[B, M, DV]`."""
    w.op(
        "pool",
        f"# The mean of {together} neighbouring patches.\n"
        "op pool(x[B, P, DV]) -> [B, M, DV] {\n"
        "  flops = 0\n  bytes = 2 * B * (P + M) * DV\n  backward_reads = []\n}\n",
    )
    return f"pool({x})"


def pixtral_tower(v: Config, stem: str, merge: int, **more: Any) -> Tower:
    """Pixtral's image encoder of rotated patches, of images of any size (Agrawal et al., arXiv:2410.07073)."""
    layer = f"{stem}transformer.layers.{{i}}."
    blocks = vit_blocks(
        v,
        layer,
        v.number("num_hidden_layers"),
        RMS,
        ("attention_norm", "ffn_norm"),
        {"rotary": -1, "stem": f"{layer}attention."},
        {
            "gated": True,
            "bias": False,
            "up": "up_proj",
            "down": "down_proj",
            "stem": f"{layer}feed_forward.",
            "name": "VisionSwiGLU",
        },
    )
    patch = v.number("patch_size")
    side = min(v.number("image_size"), 32 * patch * merge)
    return Tower(
        v.number("hidden_size"),
        blocks,
        patches_of(v, side // (patch * merge) * patch * merge),
        f"{stem}patch_conv",
        (v.number("num_channels"), 1, patch, patch),
        first_norm=(RMS, f"{stem}ln_pre"),
        **more,
    )


def mistral3(c: Config) -> Decoder:
    text = text_decoder(c)
    merge = c.number("spatial_merge_size")
    tower = pixtral_tower(c.part("vision_config", "pixtral"), "model.vision_tower.", merge)
    p = "model.multi_modal_projector."
    bias = c.flag("multimodal_projector_bias")
    act = activation(c, "projector_hidden_act")

    def project(w: Writer, m: Module) -> str:
        m.line(f"x = {RMS.of(m, 'x', 'norm', 'DV', p + 'norm')}")
        DM = merge_patches(w, m, "x", merge**2, "M", tower.width)
        DW = w.dim("DW", tower.width, "width of what they become", "DV")
        merged = linear(m, "m", "merge", f"{DM} {DW}", f"{p}patch_merger.merging_layer", False)
        hidden = linear(m, f"({merged})", "linear1", f"{DW} DH", f"{p}linear_1", bias)
        w.dim("DH", w.dims["D"].value, "hidden width of the projector", "D")
        return linear(m, activated(act, hidden, m), "linear2", "DH D", f"{p}linear_2", bias)

    projector = Projector(project, tower.num_patches // merge**2)
    return replace(text, name="Mistral3", tower=tower, projector=projector)


def ministral3(c: Config) -> Decoder:
    """The name stands for the language model alone, and in files for the whole."""
    if c.has("text_config"):
        return mistral3(Config.of(c.data, "mistral3", c.path, c.asked))
    return DENSE["mistral"](c)


VISUAL = "model.visual."


def qwen_seeing(
    v: Config,
    text: Decoder,
    name: str,
    tower: Tower,
    merge: int,
    project: Callable[[Writer, Module], str],
    deepening: Sequence[Callable[[Writer, Module], str]] = (),
) -> Decoder:
    """A language model behind a tower, if that makes vectors of its width."""
    projector = Projector(project, tower.num_patches // merge**2)
    made = v.number("out_hidden_size")
    if made == text.width:
        return replace(text, name=name, tower=tower, projector=projector, deepening=deepening)
    reason = f"The tower makes vectors of {made}, and the language model reads {text.width}"
    return replace(text, name=name, before=IdleTower(tower, projector, reason, deepening))


def made_width(w: Writer, v: Config) -> str:
    """The dim of what a projector makes."""
    made = v.number("out_hidden_size")
    return "D" if made == w.dims["D"].value else w.dim("DO", made, "width of what the tower makes")


def qwen_projector(
    v: Config, stem: str, merge: int, first: str, second: str, norm: Norm, norm_name: str
) -> Callable[[Writer, Module], str]:
    """A norm, neighbouring patches side by side, and two products."""

    def write(w: Writer, m: Module) -> str:
        width = w.dims["DV"].value
        m.line(f"x = {norm.of(m, 'x', 'norm', 'DV', stem + norm_name)}")
        DM = merge_patches(w, m, "x", merge**2, "M", width)
        DH = w.dim("DH", merge**2 * width, "hidden width of the projector", DM)
        hidden = linear(m, "m", "linear1", f"{DM} {DH}", stem + first, True)
        dims = f"{DH} {made_width(w, v)}"
        return linear(m, activated("gelu", hidden), "linear2", dims, stem + second, True)

    return write


def qwen_patches(v: Config, merge: int) -> int:
    """Patches of an image of 448 rows and columns or so: such towers take any size."""
    patch = v.number("patch_size")
    return (max(448 // (patch * merge), 1) * merge) ** 2


def qwen2_text(c: Config) -> Decoder:
    """The text's keys stand in `text_config`, or in the file itself."""
    part = c.part("text_config", c.parts["text_config"])
    if not c.has("text_config"):
        part = Config.of(c.data, part.model_type, c.path, c.asked)
    text = seeing(c, DENSE["qwen2"](part))
    for block in text.blocks[:1]:
        square(part, cast(Attention, block.mixer))
    return text


def qwen_blocks(v: Config, products: Mapping[str, str]) -> list[Block]:
    """The blocks of Qwen2's and Qwen3's towers. `products` has the names of the products of the feed-forward part."""
    stem = f"{VISUAL}blocks.{{i}}."
    attention = {**qkv(stem), **biases(True), "rotary": -1}
    layers = v.number("num_hidden_layers")
    return vit_blocks(v, stem, layers, LAYER, ("norm1", "norm2"), attention, products)


def qwen2_vl(c: Config) -> Decoder:
    v = c.part("vision_config", "qwen2_vl_vision")
    width = v.number("embed_dim")
    widths = {
        "hidden_size": width,
        "intermediate_size": int(width * v.real("mlp_ratio")),
        "out_hidden_size": v.number("hidden_size"),
    }
    v = Config.of({**v.data, **widths}, "qwen2_vl_vision", v.path, v.asked)
    merge = v.number("spatial_merge_size")
    blocks = qwen_blocks(v, {})
    num, kernel = qwen_patches(v, merge), f"{VISUAL}patch_embed.proj"
    tower = Tower(width, blocks, num, kernel, qwen_pixels(v))
    project = qwen_projector(v, f"{VISUAL}merger.", merge, "mlp.0", "mlp.2", LAYER, "ln_q")
    return qwen_seeing(v, qwen2_text(c), "Qwen2VL", tower, merge, project)


def qwen2_5_vl(c: Config) -> Decoder:
    text = qwen2_text(c)
    v = c.part("vision_config", "qwen2_5_vl_vision")
    stem = f"{VISUAL}blocks.{{i}}."
    merge = v.number("spatial_merge_size")
    full = set(v.get("fullatt_block_indexes"))
    blocks = vit_blocks(
        v,
        stem,
        v.number("num_hidden_layers"),
        RMS,
        ("norm1", "norm2"),
        {
            **qkv(stem),
            **biases(True),
            "rotary": -1,
        },
        {"gated": True, "name": "VisionSwiGLU", "up": "up_proj", "down": "down_proj"},
    )
    num = qwen_patches(v, merge)
    near = (v.number("window_size") // v.number("patch_size")) ** 2
    blocks = [b if i in full else windowed_patches(b, near, num) for i, b in enumerate(blocks)]
    tower = Tower(v.number("hidden_size"), blocks, num, f"{VISUAL}patch_embed.proj", qwen_pixels(v))
    project = qwen_projector(v, f"{VISUAL}merger.", merge, "mlp.0", "mlp.2", RMS, "ln_q")
    return qwen_seeing(v, text, "Qwen25VL", tower, merge, project)


def windowed_patches(block: Block, near: int, num: int) -> Block:
    """Attention within windows of the image: as many patches as one has."""
    if near >= num:
        return block
    part = block.mixer
    assert isinstance(part, Attention)
    about = "Patches see those of their window: as many as a band of that width has."
    part = replace(part, window=near, name="LocalVisionAttention", about=about)
    return replace(block, mixer=part, name="LocalVisionBlock")


def qkv(stem: str) -> dict[str, Any]:
    return {"q": "qkv", "k": "qkv", "v": "qkv", "o": "proj", "stem": f"{stem}attn."}


def qwen_pixels(v: Config) -> tuple[int, ...]:
    patch = v.number("patch_size")
    channels = v.number("in_channels", v.number("in_chans", 3))
    return channels, v.number("temporal_patch_size"), patch, patch


def qwen3_tower(c: Config, kind: str, text: Decoder, name: str) -> Decoder:
    v = c.part("vision_config", kind)
    merge = v.number("spatial_merge_size")
    blocks = qwen_blocks(v, {"up": "linear_fc1", "down": "linear_fc2"})
    deep = v.get("deepstack_visual_indexes", []) if "qwen3_vl" in kind else []
    if any(layer >= len(blocks) for layer in deep):
        message = f"`deepstack_visual_indexes` is {deep} for {len(blocks)} layers"
        help_ = f"layers are counted from 0 to {len(blocks) - 1}"
        raise v.unsupported(message, "deepstack_visual_indexes", help=help_)
    num = qwen_patches(v, merge)
    tower = Tower(
        v.number("hidden_size"),
        blocks,
        num,
        f"{VISUAL}patch_embed.proj",
        qwen_pixels(v),
        kernel_bias=True,
        places=f"{VISUAL}pos_embed.weight",
        num_places=v.number("num_position_embeddings"),
        keep=list(deep),
    )
    project = qwen_projector(
        v, f"{VISUAL}merger.", merge, "linear_fc1", "linear_fc2", LAYER, "norm"
    )
    deepening = tuple(deep_projector(v, i, merge) for i in range(len(deep)))
    return qwen_seeing(v, text, name, tower, merge, project, deepening)


def deep_projector(v: Config, number: int, merge: int) -> Callable[[Writer, Module], str]:
    """As the projector, but normalised after patches are side by side."""
    stem = f"{VISUAL}deepstack_merger_list.{number}."

    def write(w: Writer, m: Module) -> str:
        width = w.dims["DV"].value
        DM = merge_patches(w, m, "x", merge**2, "M", width)
        DH = w.dim("DH", merge**2 * width, "hidden width of the projector", DM)
        normal = LAYER.of(m, "m", "norm", DM, f"{stem}norm")
        hidden = linear(m, normal, "linear1", f"{DM} {DH}", f"{stem}linear_fc1", True)
        out = activated("gelu", hidden)
        dims = f"{DH} {made_width(w, v)}"
        return linear(m, out, "linear2", dims, f"{stem}linear_fc2", True)

    return write


def qwen3_vl(c: Config) -> Decoder:
    text = seeing(c, DENSE["qwen3"](c.part("text_config", "qwen3_vl_text")))
    return qwen3_tower(c, "qwen3_vl_vision", text, "Qwen3VL")


def qwen3_vl_moe(c: Config) -> Decoder:
    part = c.part("text_config", "qwen3_vl_moe_text")
    text = replace(QWEN3_MOE, mlp={"router": Router(normalise=True)})(part)
    return qwen3_tower(c, "qwen3_vl_moe_vision", seeing(c, text), "Qwen3VLMoe")


def kimi_k25(c: Config) -> Decoder:
    text = text_decoder(c)
    v = c.part("vision_config")
    v = Config.of(renamed_kimi(v.data), "kimi_k25_vision", v.path, v.asked)
    stem = "model.vision_tower.layers.{i}."
    side = v.get("merge_kernel_size")
    merge = side[0] * side[1] if isinstance(side, list) else int(side) ** 2
    blocks = vit_blocks(
        v,
        stem,
        v.number("num_hidden_layers"),
        LAYER,
        ("norm1", "norm2"),
        {"o": "proj", "stem": f"{stem}attn.", **biases(True), "rotary": -1},
        {},
    )
    patch = v.number("patch_size")
    num = (448 // patch) ** 2
    tower = Tower(
        v.number("hidden_size"),
        blocks,
        num,
        "model.vision_tower.patch_embed.proj",
        (3, 1, patch, patch),
        kernel_bias=True,
        places="model.vision_tower.patch_embed.pos_emb.position_embeddings",
        num_places=v.number("pos_emb_height") * v.number("pos_emb_width"),
        last_norm=(LAYER, "model.vision_tower.final_layernorm"),
    )
    p = "model.mm_projector."
    if c.number("projection_hidden_size", tower.width) != tower.width:
        message = "`projection_hidden_size` is the width of the tower in this class"
        raise c.unsupported(message, "projection_hidden_size", help=f"write {tower.width}")

    def project(w: Writer, m: Module) -> str:
        m.line(f"x = {LAYER.of(m, 'x', 'norm', 'DV', p + 'pre_norm')}")
        DM = merge_patches(w, m, "x", merge, "M", tower.width)
        DH = w.dim("DH", merge * tower.width, "hidden width of the projector", DM)
        hidden = linear(m, "m", "linear1", f"{DM} {DH}", f"{p}in_proj", True)
        return linear(m, activated("gelu", hidden), "linear2", f"{DH} D", f"{p}out_proj", True)

    return replace(text, name="KimiK25", tower=tower, projector=Projector(project, num // merge))


def renamed_kimi(vision: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the published file under the names of the class."""
    names = {
        "vt_hidden_size": "hidden_size",
        "vt_intermediate_size": "intermediate_size",
        "vt_num_attention_heads": "num_attention_heads",
        "vt_num_hidden_layers": "num_hidden_layers",
        "init_pos_emb_height": "pos_emb_height",
        "init_pos_emb_width": "pos_emb_width",
        "init_pos_emb_time": "pos_emb_time",
    }
    return {names.get(key, key): value for key, value in vision.items()}


MULTIMODAL = {
    "llava": llava,
    "gemma3": gemma3,
    "mistral3": mistral3,
    "ministral3": ministral3,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl_moe,
    "kimi_k25": kimi_k25,
}
