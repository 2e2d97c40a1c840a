"""Parts of a dim that its axes do not divide: `shard X over ep { uneven = balanced }`.

    stg.dim "X.part" = "ep*ceildiv(X - ep.index, ep)"

`X.part` stands where `X` does in the types of what is split so, which makes `X.part/ep` a rank's own part. In what members of a group exchange,
`X.part.max` stands: they name one size, the largest.
"""

from __future__ import annotations

from stagec import symbolic
from stagec.symbolic import Size

PART = ".part"
"""Ends the name of the dim whose parts are not all as large."""

BALANCED, CHUNK = "balanced", "chunk"
UNEVEN = (BALANCED, CHUNK)
INTERLEAVED = "interleaved"
"""Positions of caches, dealt out in turns sequence by sequence: what a rank has of them is said by who knows the sequences."""


def part_of(how: str, size: Size, ways: Size, place: Size) -> Size:
    """A rank's part of a dim, by its place among those that share it.

    `balanced`: parts differ by one at most, and the first ranks have one more, as `torch.tensor_split` cuts and vLLM deals experts
    (`determine_expert_map` in `fused_moe/layer.py`). `chunk`: parts are rounded up, and the last rank has what is left, as `torch.chunk` cuts
    and with it the `Shard` of DTensor.
    """
    if how == BALANCED:
        return symbolic.ceildiv(size - place, ways)
    each = symbolic.ceildiv(size, ways)
    return symbolic.call("min", each, size - place * each)


def last_part(how: str, size: Size, ways: Size) -> Size:
    """The part of the last rank, which has the least."""
    return part_of(how, size, ways, ways - 1)
