"""Whose all-reduce is priced."""

from stagec.driver import compile_text
from stagec.estimate.step import step_summary

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
