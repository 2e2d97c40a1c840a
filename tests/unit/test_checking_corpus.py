"""Every broken set of the corpus is found and named; nothing is found on the good ones."""

from pathlib import Path

import pytest

from stagec.checking import Report, check_traces
from stagec.checking.finding_codes import CODES
from tests.corpus.faults import FAULTS, Fault
from tests.corpus.file_faults import FILE_FAULTS, FileFault
from tests.corpus.good import GOOD


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose name says nothing: that of a test may have "empty" in it."""
    return tmp_path_factory.mktemp("set")


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_found_on_good_sets(name: str, directory: Path) -> None:
    GOOD[name]().write(directory)
    report = check_traces(directory)
    assert report.findings == [], report.text()
    assert report.summary.deadlock.startswith("none")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_are_found(fault: Fault, directory: Path) -> None:
    traces = GOOD[fault.base]()
    fault.mutate(traces)
    traces.write(directory)
    report = check_traces(directory)
    assert codes(report) == {fault.code, *fault.also}, report.text()
    assert report.has_errors == fault.code.startswith("E")
    if fault.at is not None:
        rank, name = fault.at
        places = [s.first for finding in report.findings for s in finding.places]
        ranks = {rank for f in report.findings for s in f.places for rank in s.ranks}
        assert rank in ranks
        assert name in {place.name for place in places}, report.text()


@pytest.mark.parametrize("fault", FILE_FAULTS, ids=lambda fault: fault.name)
def test_faults_of_files_are_found(fault: FileFault, directory: Path) -> None:
    GOOD[fault.base]().write(directory)
    fault.mutate(directory)
    report = check_traces(directory)
    assert fault.code in codes(report), report.text()
    assert codes(report) <= {fault.code, *fault.also}, report.text()
    if fault.file:
        files = {s.first.file for f in report.findings if f.code == fault.code for s in f.places}
        assert fault.file in files


def test_the_corpus_is_large_and_has_every_code() -> None:
    covered = {fault.code for fault in (*FAULTS, *FILE_FAULTS)}
    assert len(FAULTS) + len(FILE_FAULTS) >= 40
    assert CODES.keys() - covered == {"W0641", "W0661", "W0692"}
