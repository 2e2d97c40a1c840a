"""What a help says is code leads, written into the text as it stands, past the error that it helps with."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

import stagec.cli
from stagec.cli import main
from stagec.diagnostics import CompileError, Diagnostic, closest, file_meant
from stagec.frontend import check, parse_file, parse_text
from stagec.frontend.syntax_errors import blanks
from tests.unit.examples import EXAMPLES
from tests.unit.seldom import some

TEXT = """
dim B = 16
dim S = 8
dim D = 32
dim F = 64
dim L = 4
module Block(x[B, S, D]) -> [B, S, D] {
  weight n[D], up[D, F], down[F, D]
  h = rms_norm(x, n)
  return x + silu(h @ up) @ down
}
model M(x[B, S, D]) {
  weight head[D, F]
  repeat L { x = Block(x) }
  loss = mean(square(x @ head), over = [B, S, F])
}
plan p {
  mesh dp = 2, tp = 2, pp = 1
  shard B over dp
  shard F over tp
}
"""


def errors(text: str, plan: str | None) -> list[Diagnostic]:
    try:
        check(parse_text(text, "t.stg"), plan)
    except CompileError as error:
        return list(error.diagnostics)
    return []


def written(text: str, found: Diagnostic) -> Iterator[str]:
    """The text as each help has it, in place of what the caret is under."""
    assert found.span is not None
    lines = text.split("\n")

    def offset(line: int, column: int) -> int:
        return sum(len(each) + 1 for each in lines[: line - 1]) + column - 1

    start = offset(found.span.line, found.span.column)
    end = offset(found.span.end_line, found.span.end_column)
    old = text[start:end]
    for help_ in found.helps:
        if help_.startswith("leave "):
            yield text[:start] + text[end:]
        if meant := re.search("did you mean `(.*?)`", help_):
            wrong = re.findall("`([^`]*)`", found.message)
            for word in [each for each in wrong if each in old] or [old]:
                yield text[:start] + old.replace(word, meant[1], 1) + text[end:]
        for new in re.findall("(?:write|choose|or) `([^`]*)`|such as ([0-9]+)$", help_):
            yield text[:start] + "".join(new) + text[end:]


def is_past(text: str, plan: str | None, found: Diagnostic) -> bool:
    """Whether the error is gone, and no mistake of syntax stands before its place, or has come."""
    assert found.span is not None
    left = errors(text, plan)
    if any((each.code, each.message) == (found.code, found.message) for each in left):
        return False
    place = (found.span.line, found.span.column)
    of_syntax = [each for each in left if each.code < "E02" and each.span is not None]
    is_first = found.code < "E02"
    return not any(
        not is_first or (each.span.line, each.span.column) < place
        for each in of_syntax
        if each.span
    )


WRONG = (
    "plan a { extends p\n  microbatch 1 }",
    "plan a extends p\n  microbatch 1 }",
    "plan q extends p { freeze }",
    "plan q extends p { recompute silu in Blok, Block }",
    "plan q extends p { freeze n, upp }",
    "plan q extends p { unit Block, Blok }",
    "plan q extends p { offload { activations = [silu, sily] } }",
    "plan q extends p { precision { products = fp8, unquantized = [upp, down] } }",
    "plan q extends p { gradients { overlap = true, late = [upp, down] } }",
    "plan q extends p { mesh dp 2, tp = 2, pp = 1 }",
    "plan q extends p { precision { weights bf16 } }",
    "plan q extends p { zero 3 over dp precision { gather = fp4 } }",
    "plan q extends p { precision { weights = bf16,, activations = bf16 } }",
    "plan q extends p { pipeline 1f1b over pp }",
    "plan q extends p { pipeline gpipe over pp { microbatch = 1 } }",
    "plan q extends p { pipeline Block over pp }",
    "plan q extends p { pipeline D over pp { schedule = gpipe } }",
    "plan q extends p { shard Block.hh[S] over tp }",
    "plan q extends p { shard F, B tp }",
    "plan q extends p { shard F B over tp }",
    "plan q extends p { zero 1 1 over dp }",
    "plan q extends p { gradients { overlap = ture } }",
    "plan q extends p { device { memory = 80gb } }",
    "plan q extends p { device { memory = 80Gi } }",
    "plan q extends p { device { memory = 80G } }",
    "plan q extends p { link dp { latency_s = 5us } }",
    "plan q extends p { link dp { latency_us = 5ms } }",
    "plan q extends p { link dp { latency_us = 5 us } }",
    "plan q extends p { link dp { bytes_per_s = 50GBps } }",
    "plan q extends p { device { flops_per_s = 989TFLOPS } }",
    "plan q extends p { device { memory = 80 GiB } }",
    "plan q extends p { gradients { bucket_bytes = 25 MB, overlap = true } }",
    "plan q extends p { precision { weight = bf16 } }",
    "plan q extends p { mesh dp = 1.5, tp = 2, pp = 1 }",
    "plan q extends p { set B = 64GiB }",
    "plan q extends p { set B = 0 }",
    "plan q { serve { decode 64 at 100 block = 16 } }",
    "plan q { serve { decoe 64 at 100 } }",
    "plan q extends p { precision { weights = bf16 bf16, activations = bf16 } }",
    "plan q extends p { precision { weights = bf16, activations} = bf16 } }",
    "plan q[ extends p { set B = 8 }",
    "dim Z ={ 8",
    "dim Z 8",
    "module A(x[B, D) -> [B, D] { return x }",
    "module A(x[B, D] -> [B, D] { return x }",
    "module A(x[B, D)] -> [B, D] { return x }",
    "module A(x[B, D]) -> B, D] { return x }",
    "module A(x[B,, D]) -> [B, D] { return x }",
    "module A(x[B, D]) -> [B, D] weight a[D]\n return x }",
    "module A(x[B, D]) -> [B, D]\n return x }",
    "module A(x[B, D]) -> [B, D] { weight a[D], b[D] c[D]\n h = x\n return h }",
    "module A(x[B, D]) -> [B, D] {\n  h[B, D] (x)\n  return h }",
    "module A(x[B, D]) -> [B, D] { h = silu silu(x)\n  return h }",
    "module A(x[B, D]) -> [B, D] {\n  h silu(x)\n  return h }",
    "module A(x[B, D]) -> [B, D] { h = silu(silu(x)\n  return h }",
    "module A(x[B, D], n[D]) -> [B, D] { return rms_norm(x n) }",
    "module A(x[B, D]) -> [B, D] {\n  retrn (x) }",
    "module A(x[B, D]) -> [B, D] {\n  repeat 2 x = silu(x) }\n  return x }",
    "module A(x[B, D]) -> [B, D] {\n  n weight[D]\n  return x }",
    "module A(x[B, D]) -> [B, D] {\n  repeat 2 {( x = silu(x) }\n  return x }",
    "module A(x[B, D]) -> [B, D] { return topk(x, over = D, to = S, normalise = S) }",
    "module A(x[B, D], y[B, D, S]) -> [B, D] { return mean(y, over S) }",
    "module A(x[B, D]) -> [B, D] { return topk(x, over = D, to = S, normalise = ture) }",
)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_help_leads_past_its_error(wrong: str):
    text, (_, name) = f"{TEXT}{wrong}\n", wrong.split()[:2]
    plan = name if wrong.startswith("plan") else "p"
    first, *others = errors(text, plan)
    ways = list(written(text, first))
    assert ways
    assert not others
    assert any(is_past(each, plan, first) for each in ways), first


UNITS = {
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "ns": Fraction(1, 10**9),
}


@pytest.mark.parametrize("seed", range(6))
def test_the_help_for_a_time_says_the_same_time(seed: int):
    """In the unit of the setting: as many microseconds as were written in another."""
    draws = random.Random(seed)
    unit, blank = draws.choice(list(UNITS)), draws.choice(("", " "))
    number = draws.choice((str(draws.randint(1, 900)), f"{draws.randint(0, 90)}.25"))
    setting = draws.choice(
        ("link dp { latency_us", "device { link_latency_us", "device { network_latency_us")
    )
    text = f"{TEXT}plan q extends p {{ {setting} = {number}{blank}{unit} }} }}\n"
    (found,) = errors(text, "q")
    assert found.code == "E0105"
    meant = re.search("write `(.*)`", found.helps[0])
    assert meant is not None
    assert Fraction(meant[1]) / 10**6 == Fraction(number) * UNITS[unit]
    (fixed,) = written(text, found)
    assert not errors(fixed, "q")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("link dp { bytes_per_s = 400Gbps }", "write `400GB`, or `50GB` if these are bits"),
        ("device { link_bytes_per_s = 3TiBps }", "it is in bytes per second: write `3TiB`"),
        ("device { memory_bytes_per_s = 3TB/s }", "write `memory_bytes_per_s = 3TB`"),
        ("device { memory_bytes_per_s = 3us }", "bytes with their unit (`80GiB`)"),
        ("device { flops_per_s = 9.5P }", "without a unit: write `9.5e15`"),
        ("gradients { bucket_bytes = 25 MB }", "write `25MB`"),
        ("link dp { latency_s = 5 }", "did you mean `latency_us`, in microseconds?"),
        ("precision { weight = bf16 }", "did you mean `weights`?"),
    ],
)
def test_a_number_is_written_in_the_unit_of_its_setting(setting: str, said: str):
    (found,) = errors(f"{TEXT}plan q extends p {{ {setting} }}\n", "q")
    assert said in found.helps[0]


def without_a_brace(random_: random.Random, text: str) -> str:
    """The text without one of its braces."""
    places = [each.start() for each in re.finditer(r"[{}]", re.sub(r"#[^\n]*", blanks, text))]
    place = random_.choice(places)
    return text[:place] + text[place + 1 :]


def without_a_dim(random_: random.Random, text: str) -> str:
    """The text with another name where a dim is defined."""
    dims = [each.start(1) for each in re.finditer(r"^dim (\w+)", text, re.MULTILINE)]
    place = random_.choice(dims)
    return f"{text[:place]}zzz_{text[place:]}"


def with_a_line(random_: random.Random, text: str, times: int) -> str:
    """The text with one of its lines `times` times."""
    lines = text.split("\n")
    places = [n for n, line in enumerate(lines) if line.strip() and line.strip()[0] not in "#}"]
    place = random_.choice([n for n in places if not lines[n].endswith("{")])
    return "\n".join([*lines[:place], *[lines[place]] * times, *lines[place + 1 :]])


def without_a_line(random_: random.Random, text: str) -> str:
    return with_a_line(random_, text, 0)


def with_a_line_twice(random_: random.Random, text: str) -> str:
    return with_a_line(random_, text, 2)


def with_another_name(random_: random.Random, text: str) -> str:
    """The text with one of its names in the place of another one."""
    code = re.sub(r"#[^\n]*", blanks, text)
    one, other = random_.sample(list(re.finditer(r"[A-Za-z_]\w*", code)), 2)
    return text[: one.start()] + other[0] + text[one.end() :]


CHANGES = (
    *(without_a_brace, without_a_dim, without_a_line, with_a_line_twice),
    with_another_name,
)


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_one_mistake_is_one_diagnostic(seed: int):
    """Of the models that ship: a brace, a name or a line that is wrong, gone or twice is told once, with a help."""
    random_ = random.Random(seed)
    for change in CHANGES * 8:
        path = random_.choice(EXAMPLES)
        text = change(random_, path.read_text("utf-8"))
        found = errors(text, None)
        assert len(found) < 2, found
        assert all(each.helps for each in found), found


def mistyped(random_: random.Random, text: str) -> str:
    """The text with a token gone, twice, in the place of the next, or of other letters."""
    tokens = list(re.finditer(r'#[^\n]*|"[^"\n]*"|[\w.]+|->|[=<>!*]=|\*\*|[^\s]', text))
    tokens = [each for each in tokens if each[0][0] != "#"]
    place = random_.randrange(len(tokens) - 1)
    one, next_ = tokens[place : place + 2]
    between, rest = text[one.end() : next_.start()], text[next_.end() :]
    word, split = one[0], random_.randrange(len(one[0]))
    middle = {
        "gone": between + next_[0],
        "twice": word + (" " + word) + between + next_[0],
        "swapped": next_[0] + between + word,
        "letter": word[:split] + word[split + 1 :] + between + next_[0],
        "case": word.swapcase() + between + next_[0],
    }[random_.choice(["gone", "twice", "swapped", "letter", "case"])]
    return text[: one.start()] + middle + rest


@pytest.mark.parametrize("seed", some(range(8), 8))
def test_typos_are_diagnosed(seed: int):
    """Of the models that ship: one word of each is mistyped, at random, and a help that says what to write is right but for a few."""
    random_, proposed, wrong = random.Random(seed), 0, []
    for _ in range(25):
        path = random_.choice(EXAMPLES)
        text = mistyped(random_, path.read_text("utf-8"))
        for first in errors(text, None)[:1]:
            assert first.code.startswith("E")
            assert first.message
            ways = list(written(text, first)) if first.span is not None else []
            proposed += bool(ways)
            if ways and not any(is_past(each, None, first) for each in ways):
                wrong.append(first)
    assert proposed > 10
    assert len(wrong) <= proposed // 5, wrong


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("ste", ("use", "set", "unit"), "set"),
        ("fp4", ("nf4", "nvfp4", "fp8", "fp64"), "nvfp4"),
        ("interleave_d1f1b", ("interleaved_1f1b", "overlapped_1f1b"), "interleaved_1f1b"),
        ("FSDP", ("fsdp", "fsdp8"), "fsdp"),
        ("zzz", ("abc",), None),
    ],
)
def test_the_name_that_is_meant(name: str, known: tuple[str, ...], meant: str | None):
    assert closest(name, known) == meant


def test_a_file_that_is_not_there(tmp_path: Path):
    """The one beside it that is called like it; else those that it could be."""
    (tmp_path / "model.stg").write_text(TEXT)
    (tmp_path / "notes.txt").write_text("")
    for path, said in {
        "modle.stg": f"did you mean `{tmp_path}/model.stg`?",
        "qqq.stg": f"there is `{tmp_path}/model.stg`",
        "": f"there is `{tmp_path}/model.stg`",
        "nowhere/model.stg": f"there is no folder `{tmp_path}/nowhere`",
    }.items():
        with pytest.raises(CompileError) as raised:
            parse_file(str(tmp_path / path))
        assert raised.value.diagnostics[0].helps == (said,)
    assert file_meant(str(tmp_path / "pass.py")) == f"no file in `{tmp_path}` ends in `.py`"
    assert file_meant(str(tmp_path / "notes.txt")) == ""


def test_a_folder_that_is_trusted_is_there(capsys: pytest.CaptureFixture[str]):
    assert main(["gpt", "-q", "--trust", "/nowhere"]) == 1
    assert (
        "error[E0710]: `--trust` names a folder, and `/nowhere` is none" in capsys.readouterr().err
    )


def with_dim_called(draws: random.Random) -> tuple[Path, str, str]:
    """An example with a dim that has the name of a weight instead of its own, and that name."""
    path = draws.choice([each for each in EXAMPLES if "import " not in each.read_text()])
    text = path.read_text()
    dim = draws.choice(re.findall(r"^dim (\w+) =", text, re.M))
    taken = draws.choice(re.findall(r"^ +weight (\w+)\[", text, re.M))
    return path, re.sub(rf"^dim {dim} =", f"dim {taken} =", text, flags=re.M), dim


@pytest.mark.parametrize("seed", some(range(40), 6))
def test_a_dim_with_the_name_of_a_weight_is_one_mistake(seed: int):
    path, text, dim = with_dim_called(random.Random(seed))
    with pytest.raises(CompileError) as caught:
        check(parse_text(text, str(path)))
    (found,) = caught.value.diagnostics
    assert found.helps == (f"call that dim `{dim}`",)
    assert f"`{dim}`" in found.message


@pytest.mark.parametrize("seed", some(range(40), 6))
def test_a_dim_with_another_name_is_one_mistake(seed: int):
    """Whatever reads its own: shapes, rules, other sizes, numbers of bodies."""
    draws = random.Random(seed)
    path = draws.choice([each for each in EXAMPLES if "import " not in each.read_text()])
    text = path.read_text()
    dim = draws.choice(re.findall(r"^dim (\w+) =", text, re.M))
    with pytest.raises(CompileError) as caught:
        check(parse_text(re.sub(rf"^dim {dim} =", "dim zz9 =", text, flags=re.M), str(path)))
    (found,) = caught.value.diagnostics
    assert re.fullmatch(rf"there is no (dim|size) `{dim}`", found.message)
    assert len(found.helps) == 1


def test_mistakes_on_a_command_line_say_what_to_write():
    """Each call of `usage_error` has a help: it is the fourth argument, or named."""
    without: list[str] = []
    for path in sorted(Path(stagec.cli.__file__).parent.glob("*.py")):
        calls = [
            each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call)
        ]
        for call in calls:
            is_one = isinstance(call.func, ast.Name) and call.func.id == "usage_error"
            named = {each.arg for each in call.keywords}
            if is_one and len(call.args) < 4 and "help" not in named:
                without.append(f"{path.name}:{call.lineno}")
    assert without == []
