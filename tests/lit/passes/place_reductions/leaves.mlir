// A gradient leaves for the host behind its own reduction, whatever is reduced later.
// RUN: stagec-opt %s -p place-reductions | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %gs = stg.accumulate over "mb" -> (!stg.stack<"3" x !t>) {
    %z, %w = stg.repeat "3" carry(%h = %x : !t) -> (!t, !stg.stack<"3" x !t>) {
      %b = sched.compute "layer" (%h) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
      stg.yield %b, %b : !t, !t
    }
    stg.yield %w : !stg.stack<"3" x !t>
  }
  %s = stg.repeat "3" slice(%t = %gs : !stg.stack<"3" x !t>) -> (!stg.stack<"3" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" in step.1 {phase = "grad_reduce"} : (!t) -> !t
    stg.yield %r : !t
  }
  %o = stg.repeat "3" slice(%t = %s : !stg.stack<"3" x !t>) -> (!stg.stack<"3" x !t>) {
    %c = sched.host_copy "store" (%t) bytes "2*B" on "host.store" in step.2 {phase = "grad_reduce", leaves, apart} : (!t) -> !t
    stg.yield %c : !t
  }
  stg.output
}
// CHECK: step = "(1@0+1>B.0+1)*3 (2@0+1>B.0+1)*3"
sched.tasks @model of "" layers {} {
  B = "(0@0+1)*3",
  step = "(1@0+1)*3 (2@0+1)*3"
}
