// The tool runs the passes of a list in order, with our dialects.
// RUN: stagec-opt %s -p 'lower-to-tasks' | filecheck %s

dist.mesh <dp = 1, tp = 2>
stg.program "M" (%x : !stg.tensor<[B, D], bf16, partial [tp]>) {
  // CHECK: sched.collective "all_reduce"(%x) over [tp]
  %s = dist.all_reduce "sum" %x over [tp]
    : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
  stg.output
}
