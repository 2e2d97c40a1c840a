"""`stagec-opt`: xDSL's optimizer driver with our dialects and passes, on `.mlir` and `.stg`.

    stagec-opt FILE -p 'pass-one,pass-two{option=1}'

What is wrong with the text, the IR or the use of a pass is a diagnostic with its place.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate
from typing import IO, NoReturn

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass, PassPipeline
from xdsl.utils.arg_spec import parse_spec
from xdsl.utils.exceptions import ArgSpecParseError, VerifyException
from xdsl.xdsl_opt_main import xDSLOptMain

from stagec import __version__
from stagec.backend.files import check_place, write_whole
from stagec.cli.usage import (
    StoreOnce,
    add_flag,
    add_load_pass,
    add_repeated,
    add_trust_flags,
    mistake,
    overrides,
    store_once,
    trust_of,
    usage_error,
)
from stagec.diagnostics import CompileError, Diagnostic, Span, file_meant, quoted, refused, render
from stagec.dialects import dist, stg
from stagec.frontend import check, lower, parse_text, warnings_of
from stagec.frontend.files import decode
from stagec.ir_text import Said, locate, parse_ir, place_of, print_ir, verify_ir
from stagec.pass_manager import apply_pass, check_whole, is_ours
from stagec.plugins import IN_A_LIST, Registry, registry, written_passes
from stagec.reading import read_file
from stagec.trust import allow

SEPARATORS = {"stg": b"# -----"}
"""What `--split-input-file` splits at, where it is not `// -----`."""


def run_opt(arguments: Sequence[str]) -> int:
    return StagecOpt(arguments).process()


class PassListOnce(StoreOnce):
    """A list of passes goes on behind a comma."""

    def together(self, first: object, second: object) -> str:
        return shlex.quote(f"{first},{second}") if self.dest == "passes" else ""


class StagecOpt(xDSLOptMain):
    """xDSL's tool, with another way of reading, verifying and reporting."""

    version_format = f"stagec-opt {__version__}, on xDSL {{xdsl_version}}"
    registry: Registry

    def __init__(self, arguments: Sequence[str]) -> None:
        self.registry = registry()
        self.texts: dict[str, str] = {}
        try:
            super().__init__("Run passes on IR text and on models.", arguments)
            allow(trust_of(self.args))
            self.check_target()
            if self.args.output_file is not None:
                check_place(self.args.output_file)
        except ArgSpecParseError as error:
            message = "`--target` is malformed"
            help_ = "write the name of a target, and options in braces: `--target mlir`"
            note = str(error).splitlines()[-1]
            raise usage_error("", message, "E0710", help_, note) from None

    # What there is

    def register_all_dialects(self) -> None:
        for name, factory in self.registry.dialects.items():
            self.ctx.register_dialect(name, factory)

    def register_all_passes(self) -> None:
        self.available_passes.update(self.registry.passes)

    def register_all_targets(self) -> None:
        self.available_targets.update(self.registry.targets)

    def register_all_frontends(self) -> None:
        # `parse_chunk` does the work: it knows where a chunk starts.
        self.available_frontends = {"mlir": self.read_ir, "stg": self.read_model}

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.prog = "stagec-opt"

        def refuse(message: str) -> NoReturn:
            raise mistake(arg_parser, message)

        arg_parser.error = refuse
        store_once(arg_parser, PassListOnce)
        super().register_all_arguments(arg_parser)
        ours = arg_parser.add_argument_group("stagec")
        add_flag(ours, "--plan", "NAME", "the plan of a `.stg` file")
        add_repeated(ours, "--set", "NAME=SIZE", "the size of a dim or an axis of a `.stg` file")
        add_load_pass(ours)
        add_trust_flags(arg_parser)
        ours.add_argument("--debug", action="store_true", help="show tracebacks")

    def check_target(self) -> None:
        """E0710 for options that the form of output has not."""
        spec = parse_spec(self.args.target)
        if not spec.parameters or spec.name not in self.registry.targets:
            return
        made = self.registry.targets[spec.name]()
        try:
            made.from_spec(spec)
        except ValueError as error:
            known = [each.name for each in fields(made)]
            help_ = f"its options are {quoted(known)}" if known else "it has no options"
            message, origin = f"`{spec.name}` cannot be written so", f"--target {self.args.target}"
            raise usage_error(origin, message, "E0710", help_, str(error)) from None

    # Reading

    def prepare_input(self) -> tuple[list[tuple[IO[bytes], int]], str]:
        """The chunks of the input, each with the number of lines before it."""
        content, extension = self.read_input()
        extension = self.args.frontend or extension
        if extension not in self.available_frontends:
            message = f"`{self.args.input_file}` is neither `.mlir` nor `.stg`"
            raise usage_error("", message, help="say which it is with `--frontend`")
        chunks = [content]
        if self.args.split_input_file:
            chunks = content.split(SEPARATORS.get(extension, b"// -----"))
        lines = accumulate([0, *(chunk.count(b"\n") for chunk in chunks[:-1])])
        return [(io.BytesIO(c), n) for c, n in zip(chunks, lines, strict=True)], extension

    def read_input(self) -> tuple[bytes, str]:
        name = self.args.input_file
        if name in (None, "-"):
            return sys.stdin.buffer.read(), "mlir"
        try:
            return read_file(name), os.path.splitext(name)[1].removeprefix(".")
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"cannot read `{name}`: {reason.lower()}"
            help_ = file_meant(name) or "name another file, or `-` for standard input"
            raise refused("E0701", message, origin=name, help=help_) from None

    def get_input_name(self) -> str:
        name = self.args.input_file
        return "<stdin>" if name in (None, "-") else name

    def parse_chunk(
        self, chunk: IO[bytes], file_extension: str, start_offset: int = 0
    ) -> ModuleOp | None:
        read = self.read_model if file_extension == "stg" else self.read_ir
        return read(chunk, start_offset)

    def read_ir(self, chunk: IO[bytes], offset: int = 0) -> ModuleOp:
        name = self.get_input_name()
        text = decode(chunk.read(), name)
        self.texts[name] = "\n" * offset + text
        implicit = not self.args.no_implicit_module
        said: Said = {}
        module = parse_ir(
            self.ctx, text, name, line_offset=offset, implicit_module=implicit, said=said
        )
        self.verify(module)
        self.check(module)
        locate(said)
        return module

    def read_model(self, chunk: IO[bytes], offset: int = 0) -> ModuleOp:
        """Empty lines stand for what is before the chunk, so that places are those of the file."""
        name = self.get_input_name()
        text = "\n" * offset + decode(chunk.read(), name)
        self.texts[name] = text
        checked = check(
            parse_text(text, name),
            self.args.plan,
            overrides(self.args.set),
            self.registry.functions,
        )
        module = lower(checked)
        if found := warnings_of(checked, module):
            sys.stderr.write(render(found, checked.source.texts))
        return module

    # Passes

    def setup_pipeline(self) -> None:
        known = set(self.registry.dialects)
        for path in dict.fromkeys(self.args.load_pass):
            self.registry.load_file(path)
        for name, factory in self.registry.dialects.items():
            if name not in known:
                self.ctx.register_dialect(name, factory)
        self.available_passes.update(self.registry.passes)
        if self.registry.warnings:
            sys.stderr.write(render(self.registry.warnings))
        self.pipeline = PassPipeline(tuple(self.make_passes(self.args.passes)))

    def make_passes(self, text: str) -> list[ModulePass]:
        """The passes of a list. E0704, E0705 and E0712 for all that are none, each with its place in the list."""
        try:
            written = written_passes(text)
        except ArgSpecParseError as error:
            *_, line, marker, message = str(error).rstrip().split("\n")
            note = f"after `{line[: marker.index('^')].strip()}`"
            raise usage_error(
                f"-p '{text}'",
                f"the pass list is malformed: {message.strip().lower()}",
                "E0705",
                "write names with commas between, and arguments in braces: `a,b{c=1}`",
                note,
            ) from None
        make = partial(self.registry.make_pass, form=IN_A_LIST)
        made: list[ModulePass] = []
        found: list[Diagnostic] = []
        for each in written:
            try:
                made.append(each.made(make))
            except CompileError as error:
                flag = "-p '"
                span = Span.flag(f"{flag}{text}'", len(flag) + each.start, len(flag) + each.end)
                found += [replace(d, span=d.span or span) for d in error.diagnostics]
        if found:
            raise CompileError(found)
        return made

    def apply_passes(self, prog: ModuleOp) -> None:
        passes = self.pipeline.passes
        for number, each in enumerate(passes, 1):
            start = time.perf_counter()
            try:
                apply_pass(each, self.ctx, prog)
            except VerifyException as error:
                # What the IR says of one op, and not of another that goes with it, a pass may notice first.
                notes, help_ = [f"in the pass `{each.name}`"], help_after(each)
                raise refused(
                    "E0709", str(error), place_of(prog), notes=notes, help=help_
                ) from error
            if self.args.time_passes:
                print(f"Pass {each.name} took {time.perf_counter() - start} seconds")
            self.verify_after(each, prog)
            if number == len(passes):
                self.check(prog)
            elif self.args.print_between_passes:
                print(f"// IR after {each.name}:\n{print_ir(prog, self.get_input_name())}")

    def verify(self, module: ModuleOp) -> None:
        if not self.args.disable_verify:
            verify_ir(module)

    def verify_after(self, each: ModulePass, module: ModuleOp) -> None:
        try:
            self.verify(module)
        except CompileError as error:
            note, help_ = f"after the pass `{each.name}`", help_after(each)
            raise CompileError(
                [
                    replace(d, notes=[*d.notes, note], help=d.helps or help_)
                    for d in error.diagnostics
                ]
            ) from error

    def check(self, module: ModuleOp) -> None:
        """Refuse what `stagec` would not go on from. IR without a plan or a program is an excerpt, of which ops are verified each by itself."""
        kinds = {type(op) for op in module.body.ops}
        is_whole = {dist.PlanOp, stg.ProgramOp} <= kinds
        if is_whole and not self.args.disable_verify:
            check_whole(module, self.registry.make_pass)

    def output_resulting_program(self, prog: ModuleOp) -> str:
        """Text of the usual form says where ops come from that are of a model; xDSL's flags ask for other forms."""
        asked = self.args
        others = (asked.print_op_generic, asked.print_no_properties, asked.print_debuginfo)
        if asked.target != "mlir" or asked.syntax_highlight or any(others):
            return super().output_resulting_program(prog)
        return print_ir(prog, self.get_input_name())

    # All of it

    def process(self) -> int:
        """Every chunk, whatever becomes of the others. The exit status."""
        chunks, extension = self.prepare_input()
        failed = False
        with self.output() as output:
            for number, (chunk, offset) in enumerate(chunks):
                if number:
                    output.write("// -----\n")
                try:
                    module = self.parse_chunk(chunk, extension, offset)
                    if module is not None:
                        self.apply_passes(module)
                        output.write(self.output_resulting_program(module))
                except CompileError as error:
                    text = render(error.diagnostics, self.texts | error.sources)
                    if self.is_wanted(error):
                        output.write(text)
                        continue
                    output.flush()
                    sys.stderr.write(f"\n{text}" if failed else text)
                    failed = True
        return int(failed)

    def is_wanted(self, error: CompileError) -> bool:
        """Whether a flag asks for errors of this kind as output."""
        if any(d.code == "E0708" for d in error.diagnostics):
            return self.args.parsing_diagnostics
        return self.args.verify_diagnostics

    @contextlib.contextmanager
    def output(self) -> Iterator[IO[str]]:
        """Standard output, or a text that becomes a file in the end."""
        path = self.args.output_file
        if path is None:
            yield sys.stdout
            return
        text = io.StringIO()
        yield text
        write_whole(path, text.getvalue().encode())


def help_after(each: ModulePass) -> str:
    """How to go on where a pass made of IR what does not verify."""
    if is_ours(each):
        return f"`stagec passes {each.name}` shows what it is run on; `--print-between-passes` what it was given"
    return "mend the pass: `--disable-verify` prints what it leaves, `--print-between-passes` what it was given"
