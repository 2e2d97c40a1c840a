// A unit is there until its gradients are made, before they are copied into what is reduced; its parameters are one buffer, which the gather after an update is not.
// RUN: stagec-opt %s -p 'plan-memory{gradients="copied"}' | filecheck %s
!x = !stg.tensor<[B, D], bf16>
!w = !stg.tensor<[D, F], bf16>
!s = !dist.shard<!stg.tensor<[D, F], bf16> over [dp]>
stg.dim "mb" = "2"
dist.mesh <dp = 2>
stg.program "M" (%x : !x) {
  %v = stg.weight "v" : !s
  %w = stg.weight "w" : !s
  %sum = stg.accumulate over "mb" -> (!s) {
    // CHECK: sched.collective "all_gather"{{.*}} memory <[gathered, gathered with until 0]>
    %a, %b = sched.collective "all_gather" (%v, %w) over [dp] in "bf16" bytes "D" to "2*D" on "comm.dp" in F.0
      effects <one_buffer makes gathered> : (!s, !s) -> (!w, !w)
    %y = sched.compute "f" (%x, %a, %b) flops "B" reads "B" writes "B" on "compute" in F.1 : (!x, !w, !w) -> !x
    // CHECK: sched.compute "g"{{.*}} memory <[gradients], frees 0, last 0>
    %g = sched.compute "g" (%y) flops "B" reads "B" writes "B" on "compute" in B.2 : (!x) -> !w
    // CHECK: sched.compute "copy_in"{{.*}} memory <[communication], frees 0, replaces "gradients">
    %c = sched.compute "copy_in" (%g) flops "0" reads "B" writes "B" on "compute" in B.3 effects <one_buffer makes communication replaces "gradients"> : (!w) -> !w
    // CHECK: sched.collective "reduce_scatter"{{.*}} memory <[gradients{{.*}} of "bf16"], frees 0>
    %r = sched.collective "reduce_scatter" (%c) over [dp] in "bf16" bytes "D" to "D" on "comm.dp" in B.3
      effects <overwrites 0 by 0 whole makes gradients> : (!w) -> !s
    stg.yield %r : !s
  }
  sched.compute "update" (%w, %sum) flops "D" reads "D" writes "D" on "compute" in step.4 effects <updates ["0"]> : (!s, !s) -> ()
  // CHECK: sched.collective "all_gather"{{.*}} memory <[parameters, parameters]>
  %n, %m = sched.collective "all_gather" (%v, %w) over [dp] in "bf16" bytes "D" to "2*D" on "comm.dp" in step.4
    effects <one_buffer makes gathered> : (!s, !s) -> (!w, !w)
  stg.output
}
