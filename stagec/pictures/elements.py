"""SVG and HTML as text, with everything that a user wrote escaped."""

from __future__ import annotations

from html import escape

__all__ = ["element", "escape", "number"]

VOID = ("line", "rect", "circle", "path", "polygon", "polyline")


def element(tag: str, *children: str, **attributes: object) -> str:
    """`element("text", "12 ms", x=4, text_anchor="end")`. Children are markup: escape text before.

    A `_` in an attribute's name is a `-`; one at its end is dropped (`class_`).
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(shown(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = "".join(children)
    if not inside and tag in VOID:
        return f"<{tag}{written}/>"
    return f"<{tag}{written}>{inside}</{tag}>"


def shown(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """A coordinate: a tenth of a pixel is as much as one sees."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")
