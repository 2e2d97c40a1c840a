// What a forward pass gathered is there until the collective over what its last reader makes, but for an exchange of experts' results.
// RUN: stagec-opt %s -p plan-memory | stagec-opt - | filecheck %s
!t = !stg.tensor<[D], bf16>
!s = !dist.shard<!stg.tensor<[D], bf16> over [dp]>
stg.dim "D" = "8"
dist.mesh <dp = 2, tp = 2>
stg.program "M" (%x : !t) {
  %w = stg.weight "w" : !s
  %v = stg.weight "v" : !s
  stg.accumulate over "mb" {
    // CHECK: "all_gather"(%w) {{.*}} memory <[gathered until 0]>
    %a = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "8" to "16" on "comm.dp" in F.0
      effects <one_buffer makes gathered> {phase = "fwd"} : (!s) -> !t
    // CHECK: "mul"(%x, %a) {{.*}} memory <[temporaries], frees 0 1>
    %y = sched.compute "mul" (%x, %a) flops "D" reads "D" writes "D" on "compute" in F.1 {phase = "fwd"} : (!t, !t) -> !t
    // CHECK: "all_gather"(%y) {{.*}} last 0>
    %l = sched.collective "all_gather" (%y) over [tp] in "bf16" bytes "16" to "16" on "comm.tp" in F.2 {phase = "fwd"} : (!t) -> !t
    // CHECK: "all_gather"(%v) {{.*}} memory <[gathered], last 1>
    %b = sched.collective "all_gather" (%v) over [dp] in "bf16" bytes "8" to "16" on "comm.dp" in F.3
      effects <one_buffer makes gathered> {phase = "fwd"} : (!s) -> !t
    %z = sched.compute "mul" (%l, %b) flops "D" reads "D" writes "D" on "compute" in F.4 {phase = "fwd"} : (!t, !t) -> !t
    // CHECK: "all_to_all"(%z) {{.*}} memory <[temporaries], frees 0>
    %e = sched.collective "all_to_all" (%z) over [tp] in "bf16" bytes "16" to "16" on "comm.tp" in F.5 {phase = "fwd"} : (!t) -> !t
    stg.yield
  }
  stg.output
}
