"""From a rolled program to the segments and instances of a trace.

`dataflow` finds which node makes a value, through loops; `rows` is what tasks consist of; `layout` lays one task (the
forward pass of a microbatch, its backward pass, the step) out as rows; `assemble` puts the tasks of a rank in their order.
"""

from stagec.backend.lowering.assemble import Arrangement, Assembler, Chunk, Slot
from stagec.backend.lowering.templates import Owners

__all__ = ["Arrangement", "Assembler", "Chunk", "Owners", "Slot"]
