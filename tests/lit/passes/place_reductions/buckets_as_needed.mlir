// Buckets of parameters are gathered in the order in which the first forward pass needs them, each where the first of what is in it is needed.
// RUN: stagec-opt %s -p place-reductions | filecheck %s
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %ws = stg.weight "w" : !stg.stack<"6" x !t>
  %part = sched.view %ws : !stg.stack<"6" x !t> -> !stg.stack<"6" x !s>
  %whole = stg.repeat "6" reverse slice(%w = %part : !stg.stack<"6" x !s>) -> (!stg.stack<"6" x !t>) {
    %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in pre.0 {issued = "with_unit", lag = 1 : i64} : (!s) -> !t
    stg.yield %v : !t
  }
  stg.accumulate over "mb" {
    %y = stg.repeat "6" carry(%i = %x : !t) slice(%v = %whole : !stg.stack<"6" x !t>) -> (!t) {
      %b = sched.compute "layer" (%i, %v) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t, !t) -> !t
      stg.yield %b : !t
    }
    stg.yield
  }
  stg.output
}
// CHECK: pre = "0@4 ~0@5 0@1>F.1 ~0@2 ~0@3 0@0>F.4"
sched.tasks @model of "" layers {} {
  pre = "0@0 0@1 ~0@2 ~0@3 0@4 ~0@5",
  F = "(1@0+1)*6"
}
