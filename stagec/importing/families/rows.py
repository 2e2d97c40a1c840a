"""Decoders whose layers are alike: a row of data for each family, in what it differs from Llama.

A row gives fields of the parts that a layer has; what is a function is asked of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stagec.importing.attention import Attention
from stagec.importing.config import Config, Unsupported
from stagec.importing.decoder import Block, Decoder
from stagec.importing.families.common import (
    activation,
    biases,
    divided,
    head_width,
    layer_kinds,
    llama_attention,
    llama_mlp,
    plain_attention,
    rotated,
    square,
    tied,
    windows,
)
from stagec.importing.parts import RMS, Norm, Stream
from stagec.importing.text import LayerPart

SANDWICH = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")

Settings = Mapping[str, Any]
"""Fields by name: values, or functions that read them off a configuration."""


Decoders = dict[str, Callable[[Config], Decoder]]
"""By `model_type`."""


@dataclass(frozen=True)
class FamilyRow:
    """A family of decoders: called with a configuration, it is the decoder that this describes."""

    name: str
    attention: Settings = field(default_factory=dict)
    """Beyond Llama's, or, where it has a `stem`, beyond GPT-2's (`plain_attention`)."""
    mlp: Settings = field(default_factory=dict)
    model: Settings = field(default_factory=dict)
    norm: Norm | Callable[[Config], Norm] = RMS
    block: Settings = field(default_factory=dict)
    near: Callable[[Config], list[int]] | None = None
    """The window of each layer, if layers differ in that,"""
    local: Settings = field(default_factory=dict)
    """and what else those have that have one."""
    turned: Callable[[Config], Sequence[Any]] | None = None
    """Which layers are rotated by position, if not all are."""
    refused: tuple[tuple[Callable[[Config], Any], str], ...] = ()
    """What a configuration may not ask for, and what is said then."""
    ffn: Callable[..., LayerPart] = llama_mlp
    sparse: Callable[[Config], list[bool]] | None = None
    """Which layers have that network; the others have a dense one,"""
    dense: Settings = field(default_factory=dict)
    """and what that has beyond Llama's."""
    attend: Callable[..., Any] | None = None
    """What makes attention, if it is neither Llama's nor GPT-2's."""
    square: bool = False
    """Whether its class takes all heads together to be as wide as the model."""

    def __call__(self, c: Config) -> Decoder:
        for asks, message in self.refused:
            before = len(c.asked)
            if asks(c):
                raise Unsupported(message, c.asked[before:])
        s, settings = stream(c), asked(c, self.attention)
        attend = self.attend or (plain_attention if "stem" in settings else llama_attention)
        attention = attend(c, s, **settings)
        if self.square:
            square(c, attention)
        norm = asked_value(c, self.norm)
        network = self.ffn(c, s, **asked(c, self.mlp))
        block = Block(attention, network, norm, stream=s, **asked(c, self.block))
        if self.near is None:
            blocks = same(c, block)
        else:
            blocks = by_window(self.near(c), attention, block, asked(c, self.local))
        if self.sparse and not all(sparse := self.sparse(c)):
            blocks = with_dense(sparse, blocks, llama_mlp(c, s, **asked(c, self.dense)))
        if self.turned:
            turned = [*self.turned(c), *[True] * len(blocks)]
            blocks = [
                b if each else without_position(b) for b, each in zip(blocks, turned, strict=False)
            ]
        return decoder(c, self.name, blocks, **{"final": norm, **asked(c, self.model)})


def asked(c: Config, settings: Settings) -> dict[str, Any]:
    return {name: asked_value(c, value) for name, value in settings.items()}


def asked_value(c: Config, value: Any) -> Any:
    return value(c) if callable(value) else value


# What rows ask of a configuration


def flag(key: str, otherwise: bool = False) -> Callable[[Config], bool]:
    return lambda c: c.flag(key, otherwise)


def count(key: str) -> Callable[[Config], int]:
    return lambda c: c.count(key)


def number(key: str, otherwise: int | None = None) -> Callable[[Config], int]:
    return lambda c: c.number(key, otherwise)


def real(key: str, otherwise: float | None = None) -> Callable[[Config], float]:
    return lambda c: c.real(key, otherwise)


def where(key: str, then: Any, otherwise: Any) -> Callable[[Config], Any]:
    """One thing or another, by a flag."""
    return lambda c: asked_value(c, then if c.flag(key) else otherwise)


def acts(key: str) -> Callable[[Config], str]:
    return lambda c: activation(c, key)


GPT2_ACTS = acts("activation_function")


def of_width(times: Callable[[int], float]) -> Callable[[Config], float]:
    return lambda c: times(c.number("hidden_size"))


def turned(share: float, width: Callable[[Config], int] = head_width) -> Callable[[Config], int]:
    """How much of a head is rotated, if the file does not say."""
    return lambda c: rotated(c, width(c), share)


def turned_as(kind: str, otherwise: float = 1.0) -> Callable[[Config], int]:
    """The same for layers of a kind, which a file may tell apart; `otherwise` if it says nothing at all."""
    return lambda c: rotated(c, head_width(c), None if c.rope() else otherwise, kind)


def plain_network(
    stem: str,
    names: str,
    hidden: Callable[[Config], float],
    act: str | Callable[[Config], str] = GPT2_ACTS,
    bias: bool | Callable[[Config], bool] = True,
) -> Settings:
    """Two matrices with an activation between them; `names` are theirs: `c_fc c_proj`."""
    up, down = names.split()
    own = {"stem": stem, "up": up, "down": down}
    return {"gated": False, "bias": bias, "hidden": hidden, "act": act, **own}


def plain_width(c: Config) -> int:
    return divided(c.number("hidden_size"), c.number("num_attention_heads"), "heads", c)


def by_layer(is_local: Callable[[int], Any]) -> Callable[[Config], list[int]]:
    """The windows of layers, where the file does not say which have one, by the class's rule."""
    return by_rule(lambda c: is_local)


def all_but_each(key: str, otherwise: int) -> Callable[[Config], list[int]]:
    """Each layer has a window but every so-manieth."""

    def rule(c: Config) -> Callable[[int], Any]:
        pattern = c.number(key, otherwise)
        return lambda i: (i + 1) % pattern

    return by_rule(rule)


def by_rule(rule: Callable[[Config], Callable[[int], Any]]) -> Callable[[Config], list[int]]:
    def near(c: Config) -> list[int]:
        is_local = rule(c)
        kinds = layer_kinds(c, lambda i: "sliding_attention" if is_local(i) else "full_attention")
        return windows(c, kinds, c.count("sliding_window"))

    return near


WINDOW = {"window": count("sliding_window")}
BIASES = biases(flag("attention_bias"))
MLP_BIAS = {"bias": flag("mlp_bias")}
ALL_HEADS_NORMED = {"qk_norm": RMS, "qk_norm_over": "all"}
BESIDE = {"form": "parallel", "norms": ("input_layernorm",)}
POST_ONLY = {"form": "post_only", "norms": POST_NORMS}
GRANITE_SCALES = {"scale": real("attention_multiplier"), **BIASES}
GRANITE_RESIDUAL = {"residual": real("residual_multiplier")}
GRANITE_FACTORS = {
    "embed_factor": real("embedding_multiplier"),
    "logit_factor": lambda c: 1 / c.real("logits_scaling"),
}
NO_DECODER = (flag("add_cross_attention"), "cross-attention in a decoder alone is not imported")


def qwen_windows(c: Config) -> list[int]:
    """Layers from `max_window_layers` on have a window, if `use_sliding_window`."""
    window = c.count("sliding_window") if c.flag("use_sliding_window") else 0
    first = c.count("max_window_layers")
    kinds = layer_kinds(
        c, lambda i: "sliding_attention" if window and i >= first else "full_attention"
    )
    return windows(c, kinds, window)


# Layers, and what stands around them


def decoder(c: Config, name: str, blocks: list[Block], final: Norm = RMS, **more: Any) -> Decoder:
    settings: dict[str, Any] = {
        "vocabulary": c.number("vocab_size"),
        "positions": c.number("max_position_embeddings", 4096),
        "tied": tied(c),
    }
    return Decoder(
        name, c.number("hidden_size"), blocks=blocks, final_norm=final, **(settings | more)
    )


def stream(c: Config) -> Stream:
    return Stream(c.number("hidden_size"))


def same(c: Config, block: Block) -> list[Block]:
    """All layers of one kind."""
    return [block] * c.number("num_hidden_layers")


def with_dense(sparse: Sequence[bool], blocks: Sequence[Block], mlp: LayerPart) -> list[Block]:
    """Layers with a dense network among those that have experts; they have names of their own if there are both."""
    names = {name: f"Dense{name}" for b in blocks if (name := b.name) != "Block"}
    names["Block"] = "Dense"
    if not any(sparse):
        names = {name: name for name in names}
    return [
        b if each else replace(b, ffn=mlp, name=names[b.name])
        for b, each in zip(blocks, sparse, strict=True)
    ]


def without_position(block: Block) -> Block:
    part = block.mixer
    assert isinstance(part, Attention)
    part = replace(part, rotary=0, name=f"{part.name}WithoutPosition")
    return replace(block, mixer=part, name=f"{block.name}WithoutPosition")


def by_window(
    kinds: list[int], attention: Attention, block: Block, local: dict[str, Any] | None = None
) -> list[Block]:
    """A block for each layer: those with a window are called `LocalBlock` if there are others."""
    mixed = len(set(kinds)) > 1
    blocks = []
    for window in kinds:
        if not window:
            blocks.append(replace(block, mixer=attention))
            continue
        part = replace(attention, window=window)
        name = block.name
        if mixed:
            part = replace(part, name=f"Local{attention.name}", **(local or {}))
            name = f"Local{block.name}"
        blocks.append(replace(block, mixer=part, name=name))
    return blocks
