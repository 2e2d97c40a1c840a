"""Passes and dialects of third parties: installed, or in a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stagec
from stagec import plugins
from stagec.analysis.plug_in_attributes import mistakes_of_attributes
from stagec.cli import main, opt_main
from stagec.diagnostics import CompileError
from stagec.editing.language_features import describe_word, diagnose
from stagec.plugins import registry
from tests.unit.examples import FOLDER, compile_example

PASSES = """
from dataclasses import dataclass
from xdsl.passes import ModulePass
from xdsl.universe import Universe

@dataclass(frozen=True)
class MarkProgram(ModulePass):
    \"\"\"Say that someone was here.\"\"\"
    name = "mark-program"

    def apply(self, ctx, op):
        from xdsl.dialects.builtin import UnitAttr
        op.attributes["marked"] = UnitAttr()

UNIVERSE = Universe(all_passes={"mark-program": lambda: MarkProgram})
TAKES_OURS = Universe(all_passes={"lower-to-tasks": lambda: MarkProgram})
NOT_ONE = 3
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Makes an entry point as an installed package has it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, value: str, text: str = PASSES) -> None:
        (tmp_path / f"{value.partition(':')[0]}.py").write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {value}\n")

    plugins.installed.cache_clear()
    yield install
    plugins.installed.cache_clear()
    for name in [n for n in sys.modules if n.startswith("someone")]:
        del sys.modules[name]


def test_installed_pass_runs(install, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    install("someone", "someones_passes:UNIVERSE")
    source = tmp_path / "x.mlir"
    source.write_text('"test.op"() : () -> ()')
    assert opt_main([str(source), "-p", "mark-program"]) == 0
    output = capsys.readouterr()
    assert "attributes {marked}" in output.out
    assert output.err == ""


def test_installed_pass_is_listed(install, capsys: pytest.CaptureFixture[str]):
    install("someone", "someones_passes:UNIVERSE")
    assert main(["passes"]) == 0
    assert "  mark-program  Say that someone was here\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text", "note"),
    [
        ("someones_broken:UNIVERSE", "import not_there_at_all", "ModuleNotFoundError"),
        ("someones_exit:UNIVERSE", "raise SystemExit(3)", "SystemExit: 3"),
        ("someones_syntax:UNIVERSE", "def", "SyntaxError"),
        ("someones_passes:NOT_ONE", PASSES, "it is of type `int`, not a `Universe`"),
        ("someones_passes:NOT_THERE", PASSES, "AttributeError"),
    ],
)
def test_broken_package_is_one_warning(
    install,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    value: str,
    text: str,
    note: str,
):
    install("someone", value, text)
    source = tmp_path / "x.mlir"
    source.write_text('"test.op"() : () -> ()')
    assert opt_main([str(source)]) == 0
    output = capsys.readouterr()
    assert '"test.op"() : () -> ()' in output.out
    assert output.err.startswith(
        "warning[W0701]: the plug-in `someone` cannot be loaded and is left out\n"
        f"  = note: {value}: "
    )
    assert note in output.err
    assert output.err.count("\n") == 3


def test_a_taken_name_stays_with_its_owner(install):
    install("someone", "someones_passes:TAKES_OURS")
    found = registry()
    assert found.find_pass("lower-to-tasks").__module__ == "stagec.passes.schedule.lower_to_tasks"
    (warning,) = found.warnings
    assert warning.code == "W0702"
    assert warning.message == (
        "the pass `lower-to-tasks` of the plug-in `someone` is left out: the name is taken"
    )


def test_pass_that_cannot_be_imported(install):
    text = PASSES + "\ndef broken():\n    raise ImportError('no torch')\n"
    text += "BROKEN = Universe(all_passes={'broken': broken})\n"
    install("someone", "someones_lazy:BROKEN", text)
    with pytest.raises(CompileError) as caught:
        registry().find_pass("broken")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0712"
    line = 1 + text[: text.index("    raise ImportError")].count("\n")
    assert list(diagnostic.notes) == [
        "ImportError: no torch",
        f"in `someones_lazy.py`, line {line}",
    ]
    assert list(diagnostic.helps) == ["update or uninstall `someone` 1.0"]


def test_arguments_are_checked():
    make = registry().make_pass
    assert (
        str(make("split-microbatches", {"dim": "B", "size": 2}))
        == 'split-microbatches{dim="B" size=2}'
    )
    for arguments, message in (
        ({"dim": 3}, "`dim` of the pass `split-microbatches` has to be `str`"),
        ({"dim": "B", "size": (1, 2)}, "`size` of the pass `split-microbatches` has to be `int`"),
        ({}, "the pass `split-microbatches` wants `dim`"),
        ({"dims": "B"}, "the pass `split-microbatches` has no argument `dims`"),
    ):
        with pytest.raises(CompileError) as caught:
            make("split-microbatches", arguments)
        assert [d.message for d in caught.value.diagnostics] == [message]


@pytest.mark.parametrize(
    ("text", "note", "place", "help_"),
    [
        (
            "class P(ModulePass):\n    name = 'p'\n    count: int\n",
            "`count` of `P` is a parameter only of a `@dataclass(frozen=True)`",
            (2, 7),
            "write `@dataclass(frozen=True)` above `class P`",
        ),
        ("def\n", "SyntaxError: invalid syntax", (2, 4), "mend it, or leave out `--load-pass`"),
        (
            "def of(text):\n    return int(text)\n\nof('a')\n",
            "ValueError: invalid literal for int() with base 10: 'a'",
            (3, 12),
            "mend it, or leave out `--load-pass`",
        ),
    ],
)
def test_a_broken_file_is_shown_where_it_is_broken(
    tmp_path: Path, text: str, note: str, place: tuple[int, int], help_: str
):
    path = tmp_path / "mine.py"
    path.write_text(f"from xdsl.passes import ModulePass\n{text}")
    with pytest.raises(CompileError) as caught:
        registry([str(path)])
    (found,) = caught.value.diagnostics
    assert found.span is not None
    assert (found.span.file, found.span.line, found.span.column) == (str(path), *place)
    assert (list(found.notes), list(found.helps)) == ([note], [help_])
    assert "\n1 | " not in str(caught.value) and f"{place[0]} | " in str(caught.value)


def test_a_file_that_is_named_twice_is_loaded_once(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text("from xdsl.passes import ModulePass\n\nclass P(ModulePass):\n    name = 'p'\n")
    assert registry([str(path), str(path)]).owners["p"] == str(path)


def test_an_op_says_what_its_options_do(tmp_path: Path):
    path = tmp_path / "halved.py"
    for option, message in (
        ("by", "`fused.halved` has options, and no `from_call` that reads them"),
        ("state", "`fused.halved` has the option `state`, and is no `StatefulOp` with its methods"),
    ):
        path.write_text(OP_WITH_AN_OPTION.format(option=option))
        with pytest.raises(CompileError) as caught:
            registry([str(path)])
        (diagnostic,) = caught.value.diagnostics
        assert (diagnostic.code, list(diagnostic.notes)) == ("E0712", [message])


OP_WITH_AN_OPTION = """
from typing import ClassVar

from xdsl.irdl import irdl_op_definition, operand_def, result_def

from stagec.dialects import stg


@irdl_op_definition
class HalvedOp(stg.TensorOp):
    name = "fused.halved"
    SIGNATURES: ClassVar = (stg.Signature("halved", ("x",), "x / 2", (stg.Option("{option}", "size"),)),)
    x = operand_def(stg.TensorType)
    y = result_def(stg.TensorType)
"""


SMALL = """
dim B = 8
dim D = 16
model M(x[B, D]) {
  weight b[D]
  loss = mean(x * b, over = [B, D])
}
plan p { mesh dp = 2
  shard B over dp }
"""


BAD_PASS = """
import sys
from dataclasses import dataclass

from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import RewritePattern, op_type_rewrite_pattern

from stagec.dialects import stg
from stagec.rewriting import rewrite


@dataclass(frozen=True)
class Bad(ModulePass):
    name = "bad"

    def apply(self, ctx, op):
        {body}


class Pattern(RewritePattern):
    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: stg.ReduceOp, rewriter):
        {pattern}
"""
APPLIED = "rewrite(op, Pattern(), self.name)"
AGAIN = "rewriter.replace(op, stg.ReduceOp(op.kind.data, op.operands[0], op.over.data))"
BADLY = {
    "sys.exit(0)": "the pass `bad` failed: RuntimeError: it ends the whole run",
    "[each.detach() for each in list(op.body.block.ops)]": "the pass `bad` took the module's",
    "op.body.block.last_op.body.block.first_op.detach()": "which is nowhere in the module",
    "[setattr(o, 'kind', 'sum') for o in op.walk() if type(o) is stg.ReduceOp]": "gives `kind` of `stg.reduce` 'sum', which is no attribute",
    "[setattr(o, 'over', list(range(99))) for o in op.walk() if type(o) is stg.ReduceOp]": "of `stg.reduce` a `list`, which is no attribute",
    "[setattr(o, 'over', stg.NamesAttr(5)) for o in op.walk() if type(o) is stg.ReduceOp]": "cannot be written and read",
    "[setattr(o, 'over', stg.NamesAttr(['B'])) for o in op.walk() if type(o) is stg.ReduceOp]": "which says something else",
    "[p.insert_op_before(o, p.first_op) for o in [*op.walk()] if type(o) is stg.ReduceOp "
    "and not o.detach() for p in [op.body.block.last_op.body.block]]": "reads a value before it is made",
}


@pytest.mark.parametrize("body", [*BADLY, "raise", "again"])
def test_a_pass_of_others_goes_wrong(body: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    patterns = {"raise": "raise KeyError('y')", "again": AGAIN}
    says = {"raise": "the pass `bad` failed: KeyError: 'y'", "again": "the pass `bad` does not end"}
    model, bad = tmp_path / "m.stg", tmp_path / "bad.py"
    model.write_text(SMALL.replace("p {", "p { pass bad "))
    applied = APPLIED if body in patterns else body
    bad.write_text(BAD_PASS.format(body=applied, pattern=patterns.get(body, "pass")))
    assert main([str(model), "--load-pass", str(bad), "-q"]) == 1
    said = capsys.readouterr().err
    assert (BADLY | says)[body] in said
    assert "= help: " in said


def test_attributes_of_compiled_ir_are_read_as_they_are_written():
    module = compile_example(FOLDER / "gpt.stg", "dp4_tp8").module
    assert list(mistakes_of_attributes(module, {})) == []


def test_parameters_are_of_a_dataclass(tmp_path: Path):
    path = tmp_path / "bad.py"
    text = BAD_PASS.format(body="pass", pattern="pass").replace("@dataclass(frozen=True)", "")
    path.write_text(text.replace('name = "bad"', 'name = "bad"\n    axis: str'))
    with pytest.raises(CompileError, match="`axis` of `Bad` is a parameter only of a `@dataclass"):
        registry([str(path)])


@pytest.mark.parametrize("text", ["import nothing_of_this_name", "def half(:"])
def test_a_broken_file_says_its_line(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """By whatever path it is named, and where Python does not come to run it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.stg").write_text(SMALL)
    (tmp_path / "bad.py").write_text(f"x = 1\n{text}\n")
    assert main(["m.stg", "--load-pass", "bad.py", "-q"]) == 1
    assert f"\n2 | {text}\n" in capsys.readouterr().err


def test_files_import_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A pass of one file is about the op of another; two files bring ops of one dialect."""
    op, double, uses = (tmp_path / f"{n}.py" for n in ("one_op_file", "double_op_file", "uses_it"))
    text = OP_WITH_AN_OPTION.replace(', (stg.Option("{option}", "size"),)', "")
    text += "\n    def __init__(self, x):\n        super().__init__(operands=[x], result_types=[x.type])\n"
    op.write_text(text)
    renamed = text.replace("Halved", "Doubled").replace("halved", "doubled")
    double.write_text(renamed)
    uses.write_text(PASSES + "\nfrom one_op_file import HalvedOp\nassert HalvedOp.name\n")
    found = registry([str(op), str(double), str(uses)])
    assert [each.name for each in found.dialects["fused"]().operations] == [
        "fused.halved",
        "fused.doubled",
    ]
    assert found.functions["doubled"].op.name == "fused.doubled"
    double.write_text(renamed.replace("fused.doubled", "fused.halved"))
    with pytest.raises(CompileError, match=r"the op `fused\.halved` exists already"):
        registry([str(op), str(double)])


SERIAL = ("--executor", "serial", "-q")
OP_COMMANDS = (
    (["{model}"], ""),
    (["report", "{model}"], "M"),
    (["explain", "{model}"], ""),
    (["explain", "{model}", "flops"], ""),
    (["ops"], "halved(x)"),
    (["ops", "halved"], "fused.halved"),
    (["diff", "{model}:p", "{model}:p"], ""),
    (["search", "{model}", "--devices", "2", "--device", "h100", *SERIAL], "the best"),
    (["search", "{model}", "--like", "q", "--device", "h100", *SERIAL], "microbatch 1"),
)


@pytest.mark.parametrize("command", OP_COMMANDS, ids=lambda each: " ".join(each[0]))
def test_commands_know_ops_of_files(command, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words, shown = command
    op, model = tmp_path / "one_op_file.py", tmp_path / "m.stg"
    op.write_text(OP_OF_A_FILE)
    model.write_text(MODEL_OF_IT)
    line = [word.format(model=model) for word in words] + ["--load-pass", str(op)]
    assert main(line) == 0, capsys.readouterr().err
    assert shown in capsys.readouterr().out


OP_OF_A_FILE = (
    OP_WITH_AN_OPTION.replace(', (stg.Option("{option}", "size"),)', "")
    + """
    def __init__(self, x):
        super().__init__(operands=[x], result_types=[x.type])
"""
)
MODEL_OF_IT = """
dim B = 8
dim D = 16
model M(x[B, D]) { return halved(x) }
plan p { mesh dp = 2
  shard B over dp }
plan q { mesh dp = 4
  shard B over dp }
"""


def test_python_knows_ops_of_files(tmp_path: Path):
    op, model = tmp_path / "one_op_file.py", tmp_path / "m.stg"
    op.write_text(OP_OF_A_FILE)
    model.write_text(MODEL_OF_IT)
    job = stagec.compile(model, load_pass=[op])
    assert job.explain("flops").value == 64
    assert job.sweep("flops", dp=[1, 2]).num_rows == 2
    assert len(list(stagec.traces(model, load_pass=[op]))) == 2
    assert stagec.compile(model, load_pass=str(op)).explain("flops").value == 64


def test_python_says_whose_mistake_it_is(tmp_path: Path):
    """An exception of somebody's op or pass is a diagnostic, as on the command line, and the exception its cause."""
    op, model = tmp_path / "one_op_file.py", tmp_path / "m.stg"
    op.write_text(f"{OP_OF_A_FILE}\n    def flops(self):\n        return {{}}['none']\n")
    model.write_text(MODEL_OF_IT)
    with pytest.raises(CompileError) as caught:
        stagec.compile(model, load_pass=[op])
    (found,) = caught.value.diagnostics
    assert found.code == "E0713"
    assert found.message == "the op `fused.halved` failed: KeyError: 'none'"
    assert found.span is not None and found.span.line == 4
    assert isinstance(caught.value.__cause__, KeyError)
    bad = tmp_path / "bad.py"
    bad.write_text(BAD_PASS.format(body="raise ValueError('no')", pattern="pass"))
    model.write_text(SMALL.replace("p {", "p { pass bad "))
    with pytest.raises(CompileError, match="the pass `bad` failed: ValueError: no"):
        list(stagec.traces(model, load_pass=[bad]))


def test_editors_know_ops_of_files(tmp_path: Path):
    op = tmp_path / "one_op_file.py"
    op.write_text(OP_OF_A_FILE)
    known = registry([str(op)])
    assert [each.code for each in diagnose(MODEL_OF_IT, "m.stg", registry())] == ["E0201"]
    assert not diagnose(MODEL_OF_IT, "m.stg", known)
    assert "halved(x)" in describe_word("halved", known.functions)
    assert not describe_word("halved", registry().functions)


def test_what_is_no_file_of_passes_is_not_waited_for(tmp_path: Path):
    os.mkfifo(pipe := tmp_path / "pipe.py")
    with pytest.raises(CompileError, match="it is no regular file"):
        registry([str(pipe)])
