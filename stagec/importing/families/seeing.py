"""Further language models that see: LLaVA-NeXT and OneVision, PaliGemma, Idefics3, SmolVLM, InternVL, Aya, Command A, GLM-4.1V and GLM-4.5V."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stagec.diagnostics import suggestion
from stagec.importing.config import Config, shown
from stagec.importing.decoder import Decoder
from stagec.importing.families.common import activation, biases
from stagec.importing.families.deepseek import GLM4_MOE
from stagec.importing.families.dense import GLM4V_TEXT
from stagec.importing.families.multimodal import (
    VISUAL,
    made_width,
    moved_to,
    qkv,
    qwen_patches,
    qwen_pixels,
    qwen_seeing,
    seeing,
    siglip_tower,
    text_decoder,
    tower_of_llava,
    vit_blocks,
)
from stagec.importing.parts import LAYER, NO_NORM, RMS, Norm, activated
from stagec.importing.text import Module, Writer
from stagec.importing.tower import Projector, Tower, linear, merge_patches, mlp_projector

PROJECTOR = "model.multi_modal_projector."


def llava_next(c: Config, name: str = "LlavaNext") -> Decoder:
    """One tile of an image, and a vector that ends it."""
    tower, class_token = tower_of_llava(c)
    project = mlp_projector(
        activation(c, "projector_hidden_act"),
        f"{PROJECTOR}linear_1",
        f"{PROJECTOR}linear_2",
        c.flag("multimodal_projector_bias", True),
        class_token,
        newline="model.image_newline",
    )
    projector = Projector(project, tower.num_patches + 1)
    return replace(text_decoder(c), name=name, tower=tower, projector=projector)


def llava_onevision(c: Config) -> Decoder:
    return llava_next(c, "LlavaOneVision")


def paligemma(c: Config) -> Decoder:
    tower = siglip_tower(c.part("vision_config"), "model.vision_tower.")
    text = text_decoder(c)
    if c.number("projection_dim") != text.width:
        message = "`projection_dim` is not the width of the language model"
        raise c.unsupported(message, "projection_dim", help=f"write {text.width}")

    def project(w: Writer, m: Module) -> str:
        out = linear(m, "x", "linear", "DV D", f"{PROJECTOR}linear", True)
        return f"({out})[P -> M]"

    projector = Projector(project, tower.num_patches)
    return replace(text, name="PaliGemma", tower=tower, projector=projector)


def idefics3(c: Config, name: str = "Idefics3") -> Decoder:
    text = moved_to(text_decoder(c), "model.language_model.", "model.text_model.")
    v = c.part("vision_config", c.parts["vision_config"])
    tower = siglip_tower(v, "model.vision_model.", pools=False)
    together = c.number("scale_factor") ** 2

    def project(w: Writer, m: Module) -> str:
        DM = merge_patches(w, m, "x", together, "M", tower.width)
        return linear(
            m, "m", "linear", f"{DM} D", "model.connector.modality_projection.proj", False
        )

    projector = Projector(project, tower.num_patches // together)
    return replace(text, name=name, tower=tower, projector=projector)


def smolvlm(c: Config) -> Decoder:
    return idefics3(c, "SmolVlm")


def halved_projector(c: Config, tower: Tower, hidden: int, normed: bool) -> Projector:
    """Neighbouring patches side by side, then SwiGLU whose halves are one product."""
    together = c.number("downsample_factor") ** 2

    def project(w: Writer, m: Module) -> str:
        DM = merge_patches(w, m, "x", together, "M", tower.width)
        x = LAYER.of(m, "m", "norm", DM, f"{PROJECTOR}layernorm") if normed else "m"
        m.line(f"y = {x}")
        DH = w.dim("DH", hidden // 2, "hidden width of the projector")
        up = linear(m, "y", "up_proj", f"{DM} {DH}", f"{PROJECTOR}linear_1", True)
        gate = linear(m, "y", "gate_proj", f"{DM} {DH}", f"{PROJECTOR}linear_1", True)
        product = f"(silu({gate}) * ({up}))"
        return linear(m, product, "linear2", f"{DH} D", f"{PROJECTOR}linear_2", True)

    return Projector(project, tower.num_patches // together)


def cohere2_vision(c: Config) -> Decoder:
    tower = siglip_tower(c.part("vision_config"), "model.vision_tower.")
    projector = halved_projector(c, tower, c.number("alignment_intermediate_size"), normed=False)
    return replace(text_decoder(c), name="Cohere2Vision", tower=tower, projector=projector)


def aya_vision(c: Config) -> Decoder:
    tower, _ = tower_of_llava(c)
    text = text_decoder(c)
    hidden = c.number("alignment_intermediate_size", text.width)
    projector = halved_projector(c, tower, hidden, normed=True)
    return replace(text, name="AyaVision", tower=tower, projector=projector)


def side_of(v: Config, key: str) -> int:
    """A size that a file may give for rows and columns."""
    value = v.get(key)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    if not isinstance(value, int):
        message = f"`{key}` is {shown(value)}, not one size"
        raise v.unsupported(message, key, help="write one number for rows and columns")
    return value


def internvl(c: Config) -> Decoder:
    v = c.part("vision_config", "internvl_vision")
    side, patch = side_of(v, "image_size"), side_of(v, "patch_size")
    num, stem = (side // patch) ** 2, "model.vision_tower."
    layer = f"{stem}encoder.layer.{{i}}."
    blocks = vit_blocks(
        v,
        layer,
        v.number("num_hidden_layers"),
        {"layer_norm": LAYER, "rms_norm": RMS}[v.get("norm_type")],
        ("layernorm_before", "layernorm_after"),
        {
            "stem": f"{layer}attention.",
            "o": "projection_layer",
            "qk_norm": RMS if v.flag("use_qk_norm") else NO_NORM,
            "qk_norm_over": "all",
            **biases(v.flag("attention_bias"), output=True),
        },
        {},
        sequence="PO",
        scales=("lambda_1", "lambda_2"),
    )
    mean = v.flag("use_mean_pooling")
    places = v.flag("use_absolute_position_embeddings")
    if v.flag("use_mask_token"):
        message = "a mask token (`use_mask_token`) is not imported in this class"
        raise v.unsupported(message, "use_mask_token")
    tower = Tower(
        v.number("hidden_size"),
        blocks,
        num,
        f"{stem}embeddings.patch_embeddings.projection",
        (v.number("num_channels"), 1, patch, patch),
        side=side,
        kernel_bias=True,
        class_token=f"{stem}embeddings.cls_token",
        places=f"{stem}embeddings.position_embeddings" if places else "",
        num_places=num + 1,
        last_norm=(NO_NORM if mean else LAYER, f"{stem}layernorm"),
    )
    for key, usual in (("vision_feature_select_strategy", "default"), ("vision_feature_layer", -1)):
        if c.get(key) != usual:
            message = "other features than those of patches in the last layer are not imported"
            raise c.unsupported(message, key, help=f"write `{shown(usual)}`")
    together = int(1 / c.real("downsample_ratio")) ** 2
    act = activation(c, "projector_hidden_act")
    text = text_decoder(c)
    project = merged_projector(act, together, tower.width, text.width, "PO", LAYER)
    projector = Projector(project, num // together)
    return replace(text, name="InternVL", tower=tower, projector=projector)


def merged_projector(
    act: str, together: int, width: int, hidden: int, sequence: str, norm: Norm, bias: bool = True
) -> Callable[[Writer, Module], str]:
    """Neighbouring patches side by side, a norm, and two products with an activation between them."""

    def project(w: Writer, m: Module) -> str:
        if sequence == "PO":
            m.line("_token, x = split(x, over = PO, to = [O, P])")
        DM = merge_patches(w, m, "x", together, "M", width)
        normal = norm.of(m, "m", "norm", DM, f"{PROJECTOR}layer_norm")
        same = hidden == w.dims["D"].value
        DH = w.dim("DH", hidden, "hidden width of the projector", "D" if same else "")
        inner = linear(m, normal, "linear1", f"{DM} {DH}", f"{PROJECTOR}linear_1", bias)
        out = activated(act, inner, m)
        return linear(m, out, "linear2", f"{DH} D", f"{PROJECTOR}linear_2", bias)

    return project


def lfm2_vl(c: Config) -> Decoder:
    tower = siglip_tower(c.part("vision_config"), "model.vision_tower.")
    together = c.number("downsample_factor") ** 2
    act, bias = activation(c, "projector_hidden_act"), c.flag("projector_bias")
    norm = LAYER if c.flag("projector_use_layernorm") else NO_NORM
    hidden = c.number("projector_hidden_size")
    project = merged_projector(act, together, tower.width, hidden, "P", norm, bias)
    projector = Projector(project, tower.num_patches // together)
    tied = c.flag("tie_embedding", c.flag("tie_word_embeddings"))
    text = text_decoder(c)
    return replace(text, name="Lfm2Vl", tower=tower, projector=projector, tied=tied)


def glm_seeing(c: Config, kind: str, text: Decoder, name: str) -> Decoder:
    v = c.part("vision_config", kind)
    stem = f"{VISUAL}blocks.{{i}}."
    merge, made = v.number("spatial_merge_size"), v.number("out_hidden_size")
    act, hidden = activation(v), v.number("intermediate_size")
    blocks = vit_blocks(
        v,
        stem,
        v.number("num_hidden_layers"),
        RMS,
        ("norm1", "norm2"),
        {**qkv(stem), **biases(v.flag("attention_bias"), output=False), "rotary": -1},
        {
            "hidden": made,
            "gated": True,
            "bias": False,
            "up": "up_proj",
            "down": "down_proj",
            "name": "VisionSwiGLU",
        },
    )
    tower = Tower(
        v.number("hidden_size"),
        blocks,
        qwen_patches(v, merge),
        f"{VISUAL}patch_embed.proj",
        qwen_pixels(v),
        kernel_bias=True,
        places=f"{VISUAL}embeddings.position_embedding.weight",
        num_places=(side_of(v, "image_size") // v.number("patch_size")) ** 2,
        kernel_norm=(RMS, f"{VISUAL}post_conv_layernorm"),
        last_norm=(RMS, f"{VISUAL}post_layernorm"),
    )

    def project(w: Writer, m: Module) -> str:
        DM = merge_patches(w, m, "x", merge**2, "M", tower.width)
        DH = w.dim("DH", made, "width of what the tower makes")
        FM = w.dim("FM", hidden, "feed-forward width of the projector")
        stem = f"{VISUAL}merger."
        m.line(f"x = {linear(m, 'm', 'downsample', f'{DM} {DH}', f'{VISUAL}downsample', True)}")
        DO = w.dim("DO", made, "width before the norm of the projector", DH)
        inner = linear(m, "x", "proj", f"{DH} {DO}", f"{stem}proj", False)
        m.line(f"y = gelu({LAYER.of(m, inner, 'norm', DO, f'{stem}post_projection_norm')})")
        gate = linear(m, "y", "gate_proj", f"{DO} {FM}", f"{stem}gate_proj", False)
        up = linear(m, "y", "up_proj", f"{DO} {FM}", f"{stem}up_proj", False)
        product = f"({activated(act, gate, m)} * ({up}))"
        dims = f"{FM} {made_width(w, v)}"
        return linear(m, product, "down_proj", dims, f"{stem}down_proj", False)

    return qwen_seeing(v, text, name, tower, merge, project)


def glm4v(c: Config) -> Decoder:
    part = c.part("text_config", "glm4v_text")
    text = GLM4V_TEXT(part)
    return glm_seeing(c, "glm4v_vision", seeing(c, text), "Glm4V")


def glm4v_moe(c: Config) -> Decoder:
    text = seeing(c, GLM4_MOE(c.part("text_config", "glm4v_moe_text")))
    return glm_seeing(c, "glm4v_moe_vision", text, "Glm4VMoe")


def glm46v(c: Config) -> Decoder:
    """GLM-4.1V's or GLM-4.5V's, as its parts say."""
    part = c.part("text_config")
    if part.model_type not in ("glm4v_text", "glm4v_moe_text"):
        message = f"a language model `{part.model_type}` is not imported in this class"
        help_ = suggestion(part.model_type, ("glm4v_text", "glm4v_moe_text"))
        raise part.unsupported(message, "model_type", help=help_)
    text = (GLM4V_TEXT if part.model_type == "glm4v_text" else GLM4_MOE)(part)
    return glm_seeing(c, c.part("vision_config").model_type, seeing(c, text), "Glm46V")


SEEING = {
    "glm46v": glm46v,
    "lfm2_vl": lfm2_vl,
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "paligemma": paligemma,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "internvl": internvl,
    "cohere2_vision": cohere2_vision,
    "aya_vision": aya_vision,
    "glm4v": glm4v,
    "glm4v_moe": glm4v_moe,
}
