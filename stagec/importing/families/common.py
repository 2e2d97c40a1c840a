"""What families share: reading sizes and kinds of layers out of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from stagec.diagnostics import suggestion
from stagec.importing.attention import Attention
from stagec.importing.config import Config
from stagec.importing.feedforward import Mlp
from stagec.importing.parts import ACTIVATIONS, Stream
from stagec.importing.text import Module, Writer


class Architecture(Protocol):
    """What a configuration becomes: it writes itself."""

    name: str

    def write(self, w: Writer, /) -> Module: ...


Family = Callable[[Config], Architecture]

Asked = bool | Callable[[Config], bool]
"""A flag, or what reads it."""


def activation(c: Config, key: str = "hidden_act", otherwise: str = "") -> str:
    """An activation that the language has."""
    name = c.get(key) or otherwise
    if name not in ACTIVATIONS and name != "quick_gelu":
        message = f"the activation `{name}` of `{key}` is not in the language"
        raise c.unsupported(message, key, help=suggestion(str(name), sorted(ACTIVATIONS)))
    return name


def head_width(c: Config) -> int:
    """`head_dim`, else the model's width over its heads."""
    given = c.get("head_dim")
    if given:
        return c.number("head_dim")
    return divided(c.number("hidden_size"), c.number("num_attention_heads"), "heads", c)


def divided(whole: int, parts: int, what: str, c: Config, *keys: str) -> int:
    """`keys` are those that say what is divided, or how."""
    if whole % parts:
        message = f"{whole} does not divide into {parts} {what}"
        help_ = f"choose a number of {what} that divides {whole}"
        raise c.unsupported(message, *(keys or ("hidden_size", "num_attention_heads")), help=help_)
    return whole // parts


def rotated(c: Config, width: int, otherwise: float | None = None, kind: str = "") -> int:
    """How much of a head's width is rotated: -1 for all of it."""
    rope: Mapping[str, Any] = c.rope()
    if kind and isinstance(rope.get(kind), Mapping):
        rope = rope[kind]
    share = rope.get("partial_rotary_factor")
    if share is None:
        share = c.get("partial_rotary_factor", c.get("rotary_pct", otherwise))
    if share is None or share == 1:
        return -1
    return int(width * share)


def layer_kinds(c: Config, otherwise: Callable[[int], str]) -> list[str]:
    """`layer_types` of the file, else by the class's rule."""
    layers = c.number("num_hidden_layers")
    given = c.layer_types()
    if given is None:
        return [otherwise(i) for i in range(layers)]
    if len(given) != layers:
        message = f"`layer_types` has {len(given)} entries for {layers} layers"
        raise c.unsupported(message, "layer_types", help=f"list {layers} layers")
    return list(given)


T = TypeVar("T")


def by_kind(
    c: Config, kinds: Sequence[str], known: Mapping[str, T], key: str = "layer_types"
) -> list[T]:
    """What layers of each kind have, which `key` lists."""
    for kind in kinds:
        if kind not in known:
            message = f"layers of the kind `{kind}` are not known in this class"
            raise c.unsupported(message, key, help=suggestion(kind, known))
    return [known[kind] for kind in kinds]


def windows(c: Config, kinds: Sequence[str], window: int | None) -> list[int]:
    """The window of each layer, 0 for none."""
    return by_kind(c, kinds, {"full_attention": 0, "sliding_attention": window or 0})


def square(c: Config, attention: Attention) -> Attention:
    """The attention of a class that takes all heads together to be as wide as the model."""
    heads, width, whole = attention.heads, attention.width, attention.stream.width
    if heads * width != whole:
        message = f"{heads} heads of {width} are not the {whole} that this class has"
        keys = ("head_dim", "num_attention_heads", "hidden_size")
        raise c.unsupported(message, *keys, help=f"{heads} heads of {whole} / {heads} are")
    return attention


def tied(c: Config) -> bool:
    return c.flag("tie_word_embeddings")


def llama_attention(c: Config, s: Stream, **more: Any) -> Attention:
    """Attention with the usual keys."""
    width = more["width"] if "width" in more else head_width(c)
    heads = c.number("num_attention_heads")
    settings: dict[str, Any] = {
        "heads": heads,
        "kv_heads": c.number("num_key_value_heads", heads),
        "width": width,
        "rotary": rotated(c, width),
    }
    settings |= more
    heads = settings["heads"]
    if heads % settings["kv_heads"]:
        message = f"{heads} heads do not share {settings['kv_heads']} of keys and values evenly"
        help_ = f"choose a number of heads of keys that divides {heads}"
        raise c.unsupported(message, "num_key_value_heads", "num_attention_heads", help=help_)
    return Attention(s, **settings)


def biases(on: Asked, output: Asked | None = None) -> dict[str, Any]:
    return {
        "q_bias": on,
        "k_bias": on,
        "v_bias": on,
        "o_bias": on if output is None else output,
    }


def llama_mlp(c: Config, s: Stream, **more: Any) -> Mlp:
    settings = dict(more)
    if "hidden" not in settings:
        settings["hidden"] = c.number("intermediate_size")
    if "act" not in settings:
        settings["act"] = activation(c)
    return Mlp(s, **settings)


def plain_attention(c: Config, s: Stream, stem: str, fused: str = "", **more: Any) -> Attention:
    """Attention whose heads divide the model's width, as in GPT-2 and its kin; `fused` is the tensor of queries, keys and values."""
    heads = c.number("num_attention_heads")
    settings: dict[str, Any] = {
        "kv_heads": heads,
        "width": divided(s.width, heads, "heads", c),
        "rotary": 0,
        **(dict.fromkeys("qkv", fused) if fused else {}),
        **more,
    }
    return Attention(s, heads, stem=stem, **settings)


def plain_mlp(s: Stream, hidden: int, act: str, stem: str, names: str, bias: bool = True) -> Mlp:
    """Two matrices with an activation between them; `names` are theirs: `c_fc c_proj`."""
    up, down = names.split()
    return Mlp(s, hidden, act, gated=False, bias=bias, stem=stem, up=up, down=down)
