"""Colours for `.stg`: a lexer for Pygments, which Sphinx, MkDocs, Jupyter and LaTeX's minted use."""

from __future__ import annotations

from pygments.lexer import RegexLexer, bygroups, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from stagec.frontend.keywords import RESERVED

CLAUSES = (
    "collectives",
    "context",
    "decode",
    "device",
    "documents",
    "extends",
    "for",
    "freeze",
    "gradients",
    "in",
    "link",
    "load",
    "loss_chunks",
    "mesh",
    "microbatch",
    "offload",
    "optimizer",
    "over",
    "overlap",
    "pass",
    "pipeline",
    "pool",
    "precision",
    "prefill",
    "process",
    "rank_order",
    "recompute",
    "serve",
    "set",
    "shard",
    "unit",
    "use",
    "zero",
)
"""Words of plans: keywords where they begin a clause, names elsewhere."""


class StgLexer(RegexLexer):
    """Models and plans of stagec."""

    name = "stagec"
    aliases = ["stg", "stagec"]
    filenames = ["*.stg"]
    tokens = {
        "root": [
            (
                rf"^([ \t]*)({'|'.join(CLAUSES)})\b(?!\s*[=,(\[])",
                bygroups(Text.Whitespace, Keyword.Declaration),
            ),
            (r"\n|[^\S\n]+", Text.Whitespace),
            (r"#[^\n]*", Comment.Single),
            (r'"[^"\n]*"', String),
            (r"\b\d+(\.\d+)?([kKMGT]i?)?B\b", Number),
            (r"\b1f1b\b", Name.Constant),
            (r"\b\d+(\.\d+)?([eE][+-]?\d+)?\b", Number),
            (words(("true", "false"), r"\b", r"\b"), Keyword.Constant),
            (words(tuple(sorted(RESERVED)), r"\b", r"\b"), Keyword),
            (
                words(("over", "extends", "for", "in", "prefill", "decode"), r"\b", r"\b(?!\s*=)"),
                Keyword.Declaration,
            ),
            (r"[A-Za-z_][\w-]*(?=\()", Name.Function),
            (r"[A-Za-z_]\w*", Name),
            (r"->|==|!=|<=|>=|\*\*|[-+*/%@=<>]", Operator),
            (r"[()\[\]{},:.]", Punctuation),
        ]
    }
