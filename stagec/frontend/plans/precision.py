"""The dtypes of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagec.frontend import syntax
from stagec.frontend.plans.plan_reader import PlanReader
from stagec.plans import clauses as resolved


def read_precision(reader: PlanReader) -> resolved.Precision:
    clause = reader.merged.get(syntax.Precision)
    settings = clause.settings if clause else None
    read = reader.settings.read(settings, resolved.Precision, "`precision`")
    span = clause.span if clause else None
    values: dict[str, Any] = {**resolved.Precision.defaults(read), **read}
    if values["master"] == "none":
        values["master"] = None
    gather = values["gather"] = gathered(reader, values, read)
    is_computed = shards_weights(reader) and gather == values["activations"]
    computed = gather if is_computed else values["weights"]
    found = resolved.Precision(span=span, **values, computed=computed)
    formats = resolved.PRODUCTS.get(found.products or "")
    if formats is not None and found.product_weights not in (None, formats[1]):
        message = f"`{found.products}` products read weights in `{formats[1]}`, not in `{found.product_weights}`"
        help_ = f"write `product_weights = {formats[1]}`, or leave it out"
        reader.findings.say("E0403", message, found.given["product_weights"], help=help_)
    return found


def gathered(reader: PlanReader, values: Mapping[str, Any], read: Mapping[str, Any]) -> str:
    """The dtype that weights are gathered in. FSDP2's mixed precision gathers them in that of activations (`MixedPrecisionPolicy`)."""
    if not shards_weights(reader) or "gather" in read:
        return values["gather"]
    return min(values["weights"], values["activations"], key=resolved.FLOATS.index)


def shards_weights(reader: PlanReader) -> bool:
    """Whether this is `zero 3`."""
    zero = reader.merged.get(syntax.Zero)
    return zero is not None and isinstance(zero.level, syntax.Number) and zero.level.text == "3"
