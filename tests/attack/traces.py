"""Traces: sets of anyone's with bytes, nodes or files spoilt; and the faults that a check has to find."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from stagec.checking import check_traces
from tests.attack.case import Failure, Kind
from tests.corpus.faults import FAULTS, Fault
from tests.corpus.file_faults import FILE_FAULTS, FileFault
from tests.corpus.good import GOOD
from tests.unit.test_checking_mutations import MUTATIONS, NEED_GROUPS, NEED_TRANSFERS

Case = int
"""The seed of all choices."""


def make(draw: random.Random) -> Case:
    return draw.randrange(1 << 40)


def run(case: Case) -> None:
    """Any bytes: a report, whatever is in it."""
    draw = random.Random(case)
    traces = GOOD[draw.choice(sorted(GOOD))]()
    if draw.random() < 0.4:
        names = [m for m in MUTATIONS if m not in (*NEED_TRANSFERS, *NEED_GROUPS)]
        MUTATIONS[draw.choice(names)](traces, draw)
    with tempfile.TemporaryDirectory() as directory:
        traces.write(Path(directory))
        for _ in range(draw.randint(0, 3)):
            spoil(draw.choice(sorted(Path(directory).iterdir())), draw)
        report = check_traces(directory, jobs=1, target=draw.choice(("astra-sim", "none")))
        if not (report.text() and report.json()):
            raise Failure("a report says nothing")


def spoil(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = draw.randrange(len(data) + 1)
    match draw.randrange(5):
        case 0:
            data[at : at + 1] = bytes([draw.randrange(256)])
        case 1:
            del data[at : at + draw.randint(1, 40)]
        case 2:
            data[at:at] = draw.randbytes(draw.randint(1, 12))
        case 3:
            other = draw.randrange(len(data) + 1)
            data[at:at] = data[other : other + draw.randint(1, 60)]
        case _:
            data = data[:at]
    path.write_bytes(data)


def make_fault(draw: random.Random) -> Fault | FileFault:
    return draw.choice([*FAULTS, *FILE_FAULTS])


def run_fault(fault: Fault | FileFault) -> None:
    """A fault that changes a run is found, by its name."""
    with tempfile.TemporaryDirectory(prefix="set") as directory:
        traces = GOOD[fault.base]()
        if isinstance(fault, Fault):
            fault.mutate(traces)
        traces.write(Path(directory))
        if isinstance(fault, FileFault):
            fault.mutate(Path(directory))
        codes = {finding.code for finding in check_traces(directory, jobs=1).findings}
    if fault.code not in codes:
        raise Failure(f"`{fault.name}` is not found: {sorted(codes)}")


TRACES = Kind("traces", make, run)
SEEDED = Kind("faults", make_fault, run_fault, show=lambda fault: fault.name)
