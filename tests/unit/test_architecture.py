"""What the tree promises: where things are, what they are called, and what must exist for each."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from xdsl.ir import Operation
from xdsl.universe import XDSL_UNIVERSE

from stagec.diagnostic_codes import CODES
from stagec.dialects.op import form_of
from stagec.passes import ALL_PASSES, load_pass
from stagec.plugins import STAGEC_UNIVERSE

ROOT = Path(__file__).parents[2]
LIT = ROOT / "tests" / "lit"

PARAMETER_TYPES = {"int", "float", "bool", "str"}
PARAMETER_TYPES |= {f"tuple[{name}, ...]" for name in PARAMETER_TYPES}
"""What a command line can spell."""

PASS_FILES = sorted(
    path
    for path in (ROOT / "passes").glob("*/*")
    if path.suffix == ".py" or (path / "__init__.py").is_file()
)
"""A file each in the folder of its subject; a folder where a pass has parts that are long."""
SOURCES = sorted(p for p in (ROOT / "stagec").rglob("*.py") if not p.stem.endswith("_pb2"))
OPS = [
    (name, op)
    for name, factory in sorted(STAGEC_UNIVERSE.all_dialects.items())
    for op in factory().operations
]


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


# Passes


def test_every_pass_is_listed():
    files = [path for path in PASS_FILES if path.stem != "__init__"]
    assert {p.stem.replace("_", "-"): p.parent.name for p in files} == ALL_PASSES


@pytest.mark.parametrize("name", ALL_PASSES)
def test_one_name_in_four_spellings(name: str):
    pass_class = load_pass(name)
    assert pass_class.name == name
    assert pass_class.__name__ == "".join(word.capitalize() for word in name.split("-"))
    assert pass_class.__module__ == f"stagec.passes.{ALL_PASSES[name]}.{name.replace('-', '_')}"
    folder = LIT / "passes" / name.replace("-", "_")
    tests = [*folder.glob("*.mlir"), *folder.glob("*.stg")]
    assert tests, f"there is no lit test of {name}"


@pytest.mark.parametrize("name", ALL_PASSES)
def test_passes_are_frozen_and_have_plain_parameters(name: str):
    pass_class = load_pass(name)
    assert pass_class.__dataclass_params__.frozen
    for field in dataclasses.fields(pass_class):
        assert str(field.type) in PARAMETER_TYPES, f"{name}: {field.name} is {field.type}"


@pytest.mark.parametrize("name", ALL_PASSES)
def test_passes_say_which_errors_they_raise(name: str):
    module = sys.modules[load_pass(name).__module__]
    path = Path(str(module.__file__))
    files = path.parent.glob("*.py") if path.stem == "__init__" else [path]
    raised = {code for file in files for code in re.findall(r'"([EW]\d{4})"', file.read_text())}
    text = re.sub(r'"[EW]\d{4}"', "", path.read_text())
    assert not sorted(code for code in raised if code not in text)


def test_no_name_of_ours_is_taken_by_xdsl():
    """xDSL's tools refuse to start where two packages have one name."""
    assert not STAGEC_UNIVERSE.all_passes.keys() & XDSL_UNIVERSE.all_passes.keys()
    assert not STAGEC_UNIVERSE.all_dialects.keys() & XDSL_UNIVERSE.all_dialects.keys()


# Ops


@pytest.mark.parametrize(("dialect", "op"), OPS, ids=[op.name for _, op in OPS])
def test_every_op_is_documented_and_tested(dialect: str, op: type[Operation]):
    assert op.name.startswith(f"{dialect}.")
    assert inspect.getdoc(op), "no docstring"
    has_format = op.get_irdl_definition().assembly_format is not None
    assert not has_format or form_of(op).stmts
    assert has_format or op.print is not Operation.print, "no assembly format"
    for kind in ("roundtrip", "invalid"):
        test = LIT / "dialects" / dialect / f"{op.name.partition('.')[2]}_{kind}.mlir"
        assert test.is_file(), f"there is no {test.relative_to(ROOT)}"


SHAPELESS = {"constant", "dim", "output", "place", "program", "repeat", "accumulate", "yield"}
"""What is structure, or has no shape of its own."""


def test_ops_of_the_model_say_their_shapes_and_costs():
    """Shapes stand in brackets, and an op that counts FLOPs of its own says how many."""
    missing: list[str] = []
    for op in (op for dialect, op in OPS if dialect == "stg"):
        text = inspect.getdoc(op) or ""
        if op.name.partition(".")[2] not in SHAPELESS and not re.search(r"\[[^\]`]*\]", text):
            missing.append(f"{op.name}: shapes")
        if "flops" in vars(op) and "FLOPs" not in text:
            missing.append(f"{op.name}: FLOPs")
    assert not missing


# Codes


def lit_texts() -> str:
    return "\n".join(
        p.read_text(errors="replace") for p in LIT.rglob("*") if p.suffix in (".stg", ".mlir")
    )


def test_every_code_has_a_lit_test():
    """But for those about installed packages, test_plugins.py, and about memory that is not there, test_cli.py."""
    shown = set(re.findall(r"CHECK.*\[([EW]\d{4})\]", lit_texts()))
    assert not sorted(CODES.keys() - shown - {"W0701", "W0702", "E0717"})


# Files


def test_no_class_has_the_name_of_another():
    """Of the syntax, they are called as the grammar's rules, which clauses share; of `dist` and `sched`, two sides of one message; the checker of traces stands
    apart, and knows nothing of the compiler."""
    where: dict[str, list[str]] = {}
    for path in [*SOURCES, *(ROOT / "passes").rglob("*.py")]:
        file = str(path.relative_to(ROOT))
        if not file.startswith(("stagec/frontend/syntax/", "stagec/checking/", "stagec/passes/")):
            for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
                where.setdefault(name, []).append(file)
    for name, files in where.items():
        folders = sorted(file.rpartition("/")[0] for file in files)
        twins = ["stagec/dialects/dist", "stagec/dialects/sched"]
        assert len(files) == 1 or (name.endswith("Op") and folders == twins), (name, files)


def test_only_the_command_line_prints():
    wrong = re.compile(
        r"(?<!def )(?<![.\w])print\(|sys\.std(out|err)\b|\bimport rich\b|\bfrom rich\b"
    )
    cli = ROOT / "stagec" / "cli"
    texts = {p: re.sub(r'""".*?"""', "", p.read_text(), flags=re.DOTALL) for p in SOURCES}
    assert not relative([p for p, t in texts.items() if cli not in p.parents and wrong.search(t)])


def test_nothing_is_put_off_or_silenced():
    marks = re.compile("TO" + r"DO|FIX" + r"ME|# no" + r"qa|type: ig" + r"nore|XX" + "X")
    folders = ("stagec", "passes", "grammar", "tests", "benchmarks", "docs", "examples")
    paths = [p for f in folders for p in (ROOT / f).rglob("*") if p.is_file()]
    texts = [p for p in paths if p.suffix in (".py", ".stg", ".lark", ".md", ".mlir", ".toml")]
    assert not relative([p for p in texts if marks.search(p.read_text(errors="replace"))])


def test_lit_tests_say_what_they_show():
    """The first line is a comment that states it."""
    tests = [p for p in LIT.rglob("*") if p.suffix in (".stg", ".mlir") and "inputs" not in p.parts]
    first = {p: p.read_text(errors="replace").partition("\n")[0] for p in tests}
    good = re.compile(r"(//|#) (?!RUN)\S.*[.:]$")
    assert not relative([p for p, line in first.items() if not good.match(line)])


def test_package_is_all_that_is_installed():
    """What lies in a clone beside the package (`stagec.egg-info` after `pip install .`) is not installed: it has no record."""
    installed = [each for each in distributions(name="stagec") if each.read_text("RECORD")]
    if not installed:
        pytest.skip("stagec is not installed")
    own = [Path(str(path)) for each in installed for path in each.files or []]
    tops = {path.parts[0] for path in own if not path.name.startswith("__editable__")}
    assert not [t for t in tops if t not in ("stagec", "..") and not re.match("stagec-.*-info", t)]
