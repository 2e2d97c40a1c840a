"""`stagec MODEL.stg`: compile a model, print its summary, write its traces."""

import argparse, sys
from stagec.cli.settings import overrides
from stagec.driver import compile_model, Stops
from stagec.ir_text import print_ir


def run_compile(arguments):
    p = argparse.ArgumentParser("stagec")
    p.add_argument("model")
    p.add_argument("--plan")
    p.add_argument("--set", action="append", default=[])
    p.add_argument("--stop-after")
    p.add_argument("--print-ir", action="store_true")
    p.add_argument("--debug", action="store_true")
    p.add_argument("--quiet", action="store_true")
    p.add_argument("-o", dest="out")
    a = p.parse_args(arguments)
    compiled = compile_model(a.model, a.plan, overrides(a.set), stops=Stops(a.stop_after))
    if a.stop_after:
        sys.stdout.write(print_ir(compiled.module))
        return 0
    if a.out:
        from stagec.backend.encode import TraceOptions, encode_traces
        from stagec.backend.writer import WriteOptions, write_traces

        write_traces(encode_traces(compiled.trace_set, TraceOptions()), a.out, WriteOptions())
    return 0
