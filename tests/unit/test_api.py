"""`stagec.traces` yields what the command line writes."""

from pathlib import Path

import pytest

import stagec
from stagec.backend.bundle import Bundle, write_bundle
from stagec.backend.encode import encode_traces
from stagec.backend.errors import TraceError
from stagec.backend.writer import write_traces
from stagec.diagnostics import CompileError
from stagec.driver import compile_model

MODEL = Path(__file__).parents[2] / "examples" / "gpt.stg"
SMALL = {"L": 2, "dp": 2, "tp": 2, "B": 8}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traces") / "set"
    overrides = {k: str(v) for k, v in SMALL.items()}
    write_traces(encode_traces(compile_model(MODEL, None, overrides).trace_set), str(out))
    return out


def test_bytes_are_those_of_the_files(written: Path) -> None:
    made = dict(stagec.traces(MODEL, overrides=SMALL))
    assert sorted(made) == [0, 1, 2, 3]
    for rank, data in made.items():
        assert data == (written / f"Gpt.{rank}.et").read_bytes()


def test_some_ranks(written: Path) -> None:
    made = dict(stagec.traces(MODEL, overrides=SMALL, ranks="1,3"))
    assert sorted(made) == [1, 3]
    assert made[3] == (written / "Gpt.3.et").read_bytes()


def test_a_bundle_is_a_source(written: Path, tmp_path: Path) -> None:
    overrides = {k: str(v) for k, v in SMALL.items()}
    encoded = encode_traces(compile_model(MODEL, None, overrides).trace_set)
    write_bundle(tmp_path / "job.bundle", Bundle(encoded))
    ((rank, data),) = stagec.traces(tmp_path / "job.bundle", ranks="2")
    assert (rank, data) == (2, (written / "Gpt.2.et").read_bytes())


def test_mistakes_are_errors() -> None:
    with pytest.raises(CompileError):
        stagec.traces(MODEL, plan="nope")
    with pytest.raises(TraceError):
        list(stagec.traces(MODEL, overrides=SMALL, ranks="99"))


def test_tracked_tensors(written: Path) -> None:
    ((_, tracked),) = stagec.traces(MODEL, overrides=SMALL, ranks="1", track_memory=True)
    assert b"init/resident" in tracked
    assert b"parameter/Block.wq/L001" in tracked
    assert b"init/resident" not in (written / "Gpt.1.et").read_bytes()
