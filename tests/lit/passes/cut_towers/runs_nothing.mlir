// A pool runs a repeat of the program's own block.
// RUN: stagec-opt %s -p cut-towers --verify-diagnostics | filecheck %s

!x = !stg.tensor<[B, D], bf16>
dist.towers ["vision" 1 ["K"], "text" 2 ["L"]]
dist.pool "text" ranks 4 to 8 of 8
// CHECK: error[E0423]: the pool `vision` runs no part of the model: no repeat of its own body runs `K` times
stg.program "M" (%i : !x) {
  %z = stg.repeat "L" carry(%g = %i : !x) -> (!x) {
    stg.yield %g : !x
  }
  stg.output %z : !x
}
