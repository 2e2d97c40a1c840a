"""Advice about memory: what a warning names makes the peak lower when it is done, and nothing is named that a model does not have."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from stagec.advice import warnings
from stagec.diagnostics import CompileError
from stagec.driver import Compiled, compile_model, compile_program, compile_text
from stagec.frontend import check, parse_text
from stagec.pictures.scales import size_of
from tests.differential.random_plans import draw
from tests.unit.seldom import some

MODEL = """
dim B = 4096
dim S = 8192
dim V = {words}
dim W = 1024  # the words of the inputs
dim D = 1024
dim F = 4096
dim L = 3

module Block(x[B, S, D]) -> [B, S, D] {{
  weight norm[D], up[D, F], down[F, D]
  return x + gelu(rms_norm(x, norm) @ up) @ down
}}

model Net(tokens[B, S]: i32, targets[B, S]: i32) {{
  weight table[W, D], head[D, V]
  x = embedding(tokens, table)
  repeat L {{ x = Block(x) }}
  loss = {loss}
}}

plan p {{
  mesh dp = 8
  shard {split} over dp
  microbatch {microbatch}
  precision {{ weights = bf16, activations = bf16, gradients = fp32, optimizer = fp32 }}
  device a100
  {more}
}}
"""
LOGITS, PLAIN = "cross_entropy(x @ head, targets)", "mean(x, over = [B, S, D])"


def compiled(text: str) -> Compiled:
    return compile_program(check(parse_text(text)))


def peak(text: str) -> int:
    return max(each.peak_bytes for each in compiled(text).memory)


def advice(text: str) -> list[str]:
    found = warnings(compiled(text), None)
    assert [each.code for each in found] == ["W0501"]
    helps = [re.search(r": `(.*?)`", each) for each in found[0].helps]
    return [each[1] for each in helps if each]


def with_clause(text: str, clause: str) -> str:
    """The text's plan with a clause instead of the one of its name."""
    if clause.startswith("reshard"):
        return text.replace("{ reshard = false }", "")
    word = clause.split()[0]
    return re.sub(rf"\n  {word} .*|\}}\s*$", "", text) + f"\n  {clause}\n}}\n"


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_what_is_named_helps(seed: int) -> None:
    random = Random(seed)
    more = ["", "recompute full", "zero 2 over dp", "zero 3 over dp { reshard = false }"]
    text = MODEL.format(
        words=random.choice([2**18, 2**25]),
        loss=LOGITS if seed % 2 else PLAIN,
        split=random.choice(["B", "B, V"]) if seed % 2 == 0 else "B",
        microbatch=random.choice([256, 512]),
        more=random.choice(more),
    )
    before, clauses = peak(text), advice(text)
    assert clauses
    for clause in clauses:
        assert peak(with_clause(text, clause)) < before, clause


def test_only_logits_are_chunked() -> None:
    given = {"words": 2**21, "split": "B", "microbatch": 256, "more": ""}
    logits = MODEL.format(loss=LOGITS, **given)
    assert "loss_chunks 8" in advice(logits)
    assert not any("loss" in each for each in advice(MODEL.format(loss=PLAIN, **given)))
    # The tokens of a device come in seven parts, and not in eight.
    assert "loss_chunks 7" in advice(logits.replace("S = 8192", "S = 7007"))


def test_tables_that_are_split_are_not_split_again() -> None:
    given = {"words": 2**30, "loss": PLAIN, "microbatch": 1, "more": "recompute full"}
    assert any("zero" in each for each in advice(MODEL.format(split="B", **given)))
    assert not any("zero" in each for each in advice(MODEL.format(split="B, V", **given)))


LIMITED = 'base = "h100"\n[device]\ncapacity = {capacity}\n'


@pytest.mark.parametrize("seed", [20, 26])
@pytest.mark.seldom
def test_what_a_help_proposes_is_text_that_does_what_it_says(seed: int) -> None:
    """Clauses of E0501, applied to random plans, give the peaks that are told."""
    text = draw(Random(seed), "device h100 { nvme_bytes_per_s = 5GB, node = 2 }").text
    limit = 6 * peak(text) // 10
    with pytest.raises(CompileError) as raised:
        compile_text(f"{text}\nplan q extends p {{ device {{ memory = {limit} }} }}", plan="q")
    (error,) = raised.value.diagnostics
    told = [TOLD.match(each) for each in error.helps]
    assert error.code == "E0501"
    assert all(told) or error.helps == ("use a larger device, or more ranks",)
    for each in filter(None, told):
        clauses = "\n".join(re.findall("`(.*?)`", each[1]))
        made = compile_text(f"{text}\nplan q extends p {{\n{clauses}\n}}", plan="q")
        assert size_of(max(each.peak_bytes for each in made.memory)) == each[2]


@pytest.mark.seldom
def test_other_plans_change_no_help() -> None:
    """Whatever they are called: what is proposed is tried under a name that none of them has."""
    given = {"words": 2**10, "loss": LOGITS, "split": "B", "microbatch": 1, "more": ""}
    text = MODEL.format(**given).replace("device a100", "device a100 { memory = 100MiB }")
    helps: list[tuple[str, ...]] = []
    for others in ("", "plan p_ extends p {} plan p__ extends p {}"):
        with pytest.raises(CompileError) as raised:
            compile_text(f"{text}\n{others}", plan="p")
        helps.append(raised.value.diagnostics[0].helps)
    assert TOLD.match(helps[0][0])
    assert helps[1] == helps[0]


TOLD = re.compile(r"(`.*?`(?: and `.*?`)*) (?:together give|gives) a peak of ([\d.,]+ \w+)")


@pytest.mark.seldom
@pytest.mark.parametrize("seed", [13, 20, 27])
def test_what_a_warning_proposes_is_text_that_compiles(seed: int, tmp_path: Path) -> None:
    """Clauses of W0501, where the device is a file; with the last one it is an error."""
    capacity = 1025
    (tmp_path / "my device.toml").write_text(LIMITED.format(capacity=capacity))
    text = draw(Random(seed), "device h100 { nvme_bytes_per_s = 5GB, node = 2 }").text
    text = text.replace("device h100", 'device "my device.toml"')
    model = tmp_path / "model.stg"
    model.write_text(text)
    found = warnings(compile_model(model, "p"), None)
    (warning,) = [each for each in found if each.code == "W0501"]
    *proposed, limited = [re.findall("`(.*?)`", each)[0] for each in warning.helps]
    assert f"memory = {capacity}" in limited
    for clause in proposed:
        model.write_text(f"{text}\nplan q extends p {{ {clause} }}")
        compile_model(model, "q")
    model.write_text(f"{text}\nplan q extends p {{ {limited} }}")
    with pytest.raises(CompileError, match="E0501"):
        compile_model(model, "q")
