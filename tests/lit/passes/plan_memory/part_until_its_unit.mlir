// A part that a forward pass left of a unit is there until the first that reads what is gathered of it, and the gathered unit until its gradient is made.
// RUN: stagec-opt %s -p plan-memory | stagec-opt - | filecheck %s
!t = !stg.tensor<[D], bf16>
!s = !dist.shard<!stg.tensor<[D], bf16> over [node, dp]>
!p = !dist.shard<!stg.tensor<[D], bf16> over [dp] within [node]>
stg.dim "D" = "8"
dist.mesh <node = 2, dp = 2>
stg.program "M" (%x : !t) {
  %w = stg.weight "w" : !s
  stg.accumulate over "mb" {
    // CHECK: "all_gather"(%w) over [node, dp] {{.*}} memory <[gathered]>
    %a = sched.collective "all_gather" (%w) over [node, dp] in "bf16" bytes "4" to "16" on "comm.node.dp" in F.0
      effects <one_buffer makes gathered> {phase = "fwd"} : (!s) -> !t
    %y = sched.compute "mul" (%x, %a) flops "D" reads "D" writes "D" on "compute" in F.1 {phase = "fwd"} : (!t, !t) -> !t
    // CHECK: "keep_shard"(%a) {{.*}} memory <[gathered before 0], frees 0>
    %k = sched.compute "keep_shard" (%a) flops "0" reads "8" writes "8" on "compute" in F.2
      effects <makes gathered> {phase = "fwd"} : (!t) -> !p
    %b = sched.collective "all_gather" (%k) over [dp] in "bf16" bytes "8" to "16" on "comm.dp" in B.3
      effects <one_buffer makes gathered> {phase = "bwd"} : (!p) -> !t
    %o = sched.compute "relu" (%y) flops "D" reads "D" writes "D" on "compute" in B.4 {phase = "bwd"} : (!t) -> !t
    // CHECK: "mul"(%o, %b) {{.*}} last 0>
    %z = sched.compute "mul" (%o, %b) flops "D" reads "D" writes "D" on "compute" in B.5 {phase = "bwd"} : (!t, !t) -> !t
    stg.yield
  }
  stg.output
}
