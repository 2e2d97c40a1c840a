"""Passes for tests of the command line: one for each way of going wrong."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.test import TestOp
from xdsl.passes import ModulePass

from stagec.diagnostics import CompileError, Diagnostic, span_of
from stagec.rewriting import programs
from stagec.unrolling.module import KeepsRows


@dataclass(frozen=True)
class DoNothing(ModulePass):
    """Leave the program as it is."""

    name = "do-nothing"

    times: int = 1

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pass


@dataclass(frozen=True)
class Crash(ModulePass):
    """Raise what no pass should."""

    name = "crash"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        {}["weights"]


@dataclass(frozen=True)
class Refuse(ModulePass):
    """Find fault with the program, as a pass should."""

    name = "refuse"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        (program,) = programs(op)
        message = f"`{program.model.data}` is too small"
        raise CompileError([Diagnostic("E0713", message, span_of(program.location))])


@dataclass(frozen=True)
class BreakProgram(ModulePass):
    """Leave a program that does not verify."""

    name = "break-program"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        (program,) = programs(op)
        program.body.block.add_op(TestOp())


@dataclass(frozen=True)
class MarkDim(ModulePass):
    """Say on the program which dim it was told."""

    name = "mark-dim"

    dim: str

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        (program,) = programs(op)
        program.attributes["own.marked"] = StringAttr(self.dim)


@dataclass(frozen=True)
class Promise(KeepsRows, MarkDim):
    """Change what rows are made of, and promise not to."""

    name = "promise"

    dim: str = "B"
