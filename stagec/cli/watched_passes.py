"""What `stagec MODEL.stg` hears of passes while they run: progress, and their IR."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from xdsl.dialects.builtin import ModuleOp

from stagec.cli.inputs import SEPARATOR, is_ir
from stagec.cli.progress import pass_progress
from stagec.driver import Stops
from stagec.ir_text import print_ir


@contextmanager
def watched(
    options: argparse.Namespace, look: Callable[[ModuleOp], object] | None = None
) -> Iterator[Callable[..., Stops]]:
    """What is asked of the passes, of each pool by its name: where they stop, and who hears of each. `look` sees how many microbatches there are."""
    printer = PassPrinter(options)
    with pass_progress(options.quiet or printer.prints) as told:

        def stops(pool: str = "") -> Stops:
            def on_pass(name: str, module: ModuleOp) -> None:
                told(name)
                if look is not None and name == "split-microbatches":
                    look(module)
                printer.after(f"{name}, pool {pool}" if pool else name, module)

            places = options.memory is not None
            return Stops(
                options.stop_after, on_pass, shows_each=printer.prints, places_buffers=places
            )

        yield stops


class PassPrinter:
    """Prints the IR after each pass, if that is asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.prints = bool(options.print_ir and options.stop_after is None)
        self.read_from = ir_of(options)
        self.is_first = True

    def after(self, name: str, module: ModuleOp) -> None:
        if self.prints:
            separator = "" if self.is_first else SEPARATOR
            sys.stdout.write(f"{separator}// IR after {name}\n{print_ir(module, self.read_from)}")
            self.is_first = False


def ir_of(options: argparse.Namespace) -> str | None:
    """The file of IR that is compiled, if it is one."""
    return options.model if is_ir(options.model) else None
