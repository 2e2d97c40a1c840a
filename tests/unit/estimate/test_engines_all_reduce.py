"""Whose all-reduce is priced."""

import pytest

from stagec.driver import compile_text
from stagec.estimate.step import step_summary
from tests.unit.seldom import some

MODEL = """
dim B = 8
dim S = 1
dim T = S
dim D = 1024
dim F = 4096

model M(x[B, S, D]) {
  weight up[D, F], down[F, D]
  cache past[B, T, D]
  h = append(past, relu(x @ up) @ down)
  return x + mean(h, over = T)
}

plan p {
  mesh tp = 2
  shard F over tp
  precision { weights = bf16, activations = bf16 }
"""


def seconds(more: str) -> float:
    return step_summary(compile_text(f"{MODEL}  {more}\n}}\n")).step_s


def test_an_engine_has_its_own_where_it_serves() -> None:
    """Nobody trains with it."""
    served = "serve { decode 8 at 100 } "
    ours = seconds(f"{served}device h100 {{ all_reduce = vllm }}")
    assert ours < seconds(f"{served}device h100")
    assert seconds("device h100 { all_reduce = vllm }") == seconds("device h100")


@pytest.mark.parametrize("batch", some([8, 2, 1024, 64, 8192]))
@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_one_without_effect_on_times_is_told(batch: int, engine: str) -> None:
    """As where NCCL's is faster for all that is summed."""
    served = f"serve {{ decode {batch} at 100 }} "
    text = f"{MODEL}  {served}device h100 {{ all_reduce = {engine} }}\n}}\n"
    told = [each.message for each in compile_text(text).idle]
    is_same = step_summary(compile_text(text)).step_s == seconds(f"{served}device h100")
    assert told == is_same * ["`all_reduce` of `device` changes nothing here"]
