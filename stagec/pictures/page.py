"""A page: one file, which asks nothing of a network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from stagec.pictures.elements import element, escape


@cache
def resource(name: str) -> str:
    """A style sheet or a script of this package."""
    return resources.files("stagec.pictures").joinpath(name).read_text("utf-8")


def page(title: str, *parts: str, script: str = "") -> str:
    """HTML with its style and script inside."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        element("title", escape(title)),
        element("style", resource("page.css")),
    ]
    body = [*parts, element("script", script)] if script else list(parts)
    inside = element("head", *head) + element("body", *body)
    return f'<!doctype html>\n<html lang="en">{inside}</html>\n'


def picture(chart: str) -> str:
    """A chart as an SVG file of its own."""
    head = '<svg xmlns="http://www.w3.org/2000/svg"'
    style = f"<style>{resource('page.css')}</style><rect width='100%' height='100%' fill='#fff'/>"
    return chart.replace("<svg", head, 1).replace(">", f">{style}", 1) + "\n"


def chosen(name: str, choices: Sequence[tuple[str, str]]) -> str:
    """One of several pictures at a time, chosen from a row of buttons; works without a script."""
    if len(choices) == 1:
        return choices[0][1]
    parts: list[str] = []
    for i, (label, content) in enumerate(choices):
        which = f"{name}-{i}"
        checked = " checked" if not i else ""
        parts.append(f'<input type="radio" name="{escape(name)}" id="{escape(which)}"{checked}>')
        parts.append(element("label", escape(label), for_=which))
        parts.append(element("div", content, class_="choice"))
    return element("div", *parts, class_="choices")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], name: str = "") -> str:
    """Text cells; those after the first of a row stand at the right."""
    top = element("tr", *(element("th", escape(cell)) for cell in head))
    lines = [element("tr", *(element("td", escape(cell)) for cell in row)) for row in rows]
    caption = element("caption", escape(name)) if name else ""
    return element("table", caption, element("thead", top), element("tbody", *lines))
