"""One way to write a text: `format_text`. It changes spaces, line breaks and commas, never what a text says."""

from stagec.formatting.layout import format_text

__all__ = ["format_text"]
