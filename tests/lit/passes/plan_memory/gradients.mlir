// Three frameworks' ways with gradients: buffers that stay, parts of them, copies in the buffer of a reduction.
// RUN: stagec-opt %s -p plan-memory | filecheck %s --check-prefixes=ALL,WHOLE
// RUN: stagec-opt %s -p 'plan-memory{gradients="partitioned"}' | filecheck %s --check-prefixes=ALL,PARTS
// RUN: stagec-opt %s -p 'plan-memory{gradients="copied"}' | filecheck %s --check-prefixes=ALL,COPIED
!x = !stg.tensor<[B, D], bf16>
!w = !stg.tensor<[D, F], bf16>
!g = !stg.tensor<[D, F], bf16, partial [dp]>
!p = !stg.tensor<[D, F], fp32, partial [dp]>
!s = !dist.shard<!stg.tensor<[D, F], fp32> over [dp]>
stg.dim "mb" = "2"
dist.mesh <dp = 2>
stg.program "M" (%x : !x) {
  %w = stg.weight "w" : !w
  %sum = stg.accumulate over "mb" -> (!p) {
    // WHOLE:  sched.compute "contract"{{.*}} memory <[gradients of "fp32" stays], frees 0>
    // PARTS:  sched.compute "contract"{{.*}} memory <[gradients of "fp32" stays], frees 0>
    // COPIED: sched.compute "contract"{{.*}} memory <[gradients of "fp32"], frees 0>
    %g = sched.compute "contract" (%x) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "wgrad"} : (!x) -> !g
    stg.yield %g : !g
  }
  // WHOLE:  sched.collective "reduce_scatter"{{.*}} memory <[gradients in 0], frees 0>
  // PARTS:  sched.collective "reduce_scatter"{{.*}} memory <[gradients], frees 0>
  // COPIED: sched.collective "reduce_scatter"{{.*}} memory <[gradients], frees 0>
  %r = sched.collective "reduce_scatter" (%sum) over [dp] in "fp32" bytes "4*D*F" to "4*D*F/dp" on "comm.dp" in step.1
    effects <overwrites 0 by 0 whole makes gradients> : (!p) -> !s
  %part = sched.view %w : !w -> !dist.shard<!stg.tensor<[D, F], bf16> over [dp]>
  sched.compute "update" (%part, %r) flops "D" reads "D" writes "D" on "compute" in step.2 effects <updates ["8*F*ceildiv(D, dp)"] master "fp32">
    : (!dist.shard<!stg.tensor<[D, F], bf16> over [dp]>, !s) -> ()
  stg.output
}
// ALL:      sched.stored of "" {
// ALL-NEXT: "w" parameters "2*D*F",
// ALL-NEXT: "w" optimizer "8*F*ceildiv(D, dp)",
// ALL-NEXT: "w" master "4*F*ceildiv(D, dp)"
// ALL-NEXT: }
