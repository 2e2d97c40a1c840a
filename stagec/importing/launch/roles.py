"""What a model calls the dims that plans of launchers speak of."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stagec.diagnostics import CompileError
from stagec.frontend import Source, check
from stagec.plugins import registry
from stagec.searching.model import read_model

Names = Mapping[str, tuple[str, ...]]
"""By the letter that a plan has for a dim (`T`, the tokens of an expert): what the model calls it."""

LETTERS = ("B", "S", "H", "K", "F", "V", "X", "T", "M")


def letters_in(dims: Collection[str]) -> Names:
    """Each that there is a dim of."""
    return {letter: (letter,) for letter in LETTERS if letter in dims}


def names_in(source: Source, dims: Collection[str]) -> Names:
    """Likewise; where a model has other names, those of the role, as its ops tell it. What keeps it from being read is said when it is compiled."""
    found = letters_in(dims)
    try:
        model = read_model(check(source, None, {}, registry().functions))
    except CompileError:
        return found
    others = {
        "B": (model.batch,),
        "S": model.sequence,
        "H": tuple(name for name in model.heads if name not in model.key_heads),
        "K": model.key_heads,
        "F": tuple(name for name in model.inner if name not in model.expert_inner),
        "M": model.expert_inner,
        "V": model.vocabulary,
    }
    for letter, names in others.items():
        own = tuple(name for name in names if name not in LETTERS)
        if letter not in found and own:
            found = {**found, letter: own}
    # Ops tell experts from everything else, whose dims may have the same letters: `T` is often a dim of positions.
    experts = {"X": model.experts, "T": model.expert_tokens}
    return {**found, **experts} if model.experts else found
