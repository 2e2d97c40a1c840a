"""Fenced blocks of the documentation that show the language, whole files or parts of one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

_DIMS = """
dim B = 16
dim S = 1024
dim D = 512
"""
_MORE_DIMS = """
dim H = 32
dim K = 8
dim E = D / H
dim L = 4
dim T = S
dim C = D
"""
PARTS = {
    "": "{block}",
    "definitions": f"{_DIMS}dim N = 128\n{{block}}\nmodel Net(x[B, S, D]) {{{{ return x }}}}\n",
    "body": f"""{_DIMS}{_MORE_DIMS}
module Pair(x[B, S, D]) -> [B, S, D], [B, S, D] {{{{ return x, x * 2 }}}}
module Block(x[B, S, D]) -> [B, S, D] {{{{ return silu(x) }}}}
model Net(x[B, S, D]) {{{{
{{block}}
}}}}
""",
    "plan": f"""{_DIMS}{_MORE_DIMS}
module Block(x[B, S, D]) -> [B, S, D] {{{{
  weight wq[D, H, E], wk[D, K, E], wo[H, E, D], norm[D]
  h = rms_norm(x, norm)
  k = h @ wk
  return x + attention(h @ wq, k, k) @ wo
}}}}
model Net(x[B, S, D]) {{{{
  h = x * 2
  repeat L {{{{ h = Block(h) }}}}
  loss = mean(h, over = [B, S, D])
}}}}
plan p {{{{
{{block}}
}}}}
""",
}
"""What stands around a part of a file."""


@dataclass(frozen=True)
class Example:
    """A fenced block: where it is, the code it is an example of, which part of a file it shows."""

    page: Path
    line: int
    code: str
    part: str
    block: str

    @property
    def program(self) -> str:
        block = self.block
        if self.part == "body" and "loss =" not in block:
            block += "loss = mean(x, over = [B, S, D])\n"
        return PARTS[self.part].format(block=block)


def examples(page: Path) -> list[Example]:
    """The blocks that are marked `stg`, with a code, a part, both or neither."""
    text = page.read_text("utf-8")
    pattern = re.compile(r"^```stg *([EW]\d{4})? *(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Example(page, text.count("\n", 0, m.start()) + 1, m[1] or "", m[2], m[3])
        for m in pattern.finditer(text)
    ]
