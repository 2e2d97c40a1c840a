// A repetition of one element is strides of no bytes, unless who reads it copies that first: who has others along its batch dims.
// RUN: stagec-opt %s -p plan-memory | filecheck %s
!t = !stg.tensor<[B, K], bf16>
!r = !stg.tensor<[B, H], bf16>
stg.dim "mb" = "2"
dist.mesh <dp = 1>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    // CHECK: %k = sched.compute{{.*}} memory <[temporaries repeats 0 "K"]>
    %k = sched.compute "repeat" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 effects <repeats "K"> : (!t) -> !r
    // CHECK: %v = sched.compute{{.*}} memory <[temporaries]>
    %v = sched.compute "repeat" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 effects <repeats "K"> : (!t) -> !r
    // CHECK: %y = sched.compute{{.*}} memory <[temporaries repeats 0 "B*K"], frees 0>
    %y = sched.compute "repeat" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 effects <repeats "K" along "H"> : (!t) -> !r
    %w = sched.view %v : !r -> !r
    %z = sched.view %y : !r -> !r
    sched.compute "read" (%k) flops "B" reads "B" writes "B" on "compute" in F.0 : (!r) -> ()
    sched.compute "read" (%w) flops "B" reads "B" writes "B" on "compute" in F.0 effects <dense> : (!r) -> ()
    sched.compute "read" (%z) flops "B" reads "B" writes "B" on "compute" in F.0 effects <dense batch ["B" = "B", "H" = "H"]> : (!r) -> ()
    stg.yield
  }
  stg.output
}
