// What a collective reads is there until somebody waits for what it makes: what is computed beside it does not get that memory.
// RUN: stagec-opt %s -p plan-memory | stagec-opt - | filecheck %s
!t = !stg.tensor<[D], bf16>
stg.dim "D" = "8"
dist.mesh <tp = 2>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    %a = sched.compute "mul" (%x, %x) flops "D" reads "D" writes "D" on "compute" in B.0 : (!t, !t) -> !t
    // CHECK: "reduce_scatter"(%a) {{.*}} memory <[temporaries], frees 0, keeps 0 until 0>
    %r = sched.collective "reduce_scatter" (%a) over [tp] in "bf16" bytes "16" to "8" on "comm.tp" in B.0 : (!t) -> !t
    // CHECK: "beside"(%x) {{.*}} memory <[temporaries], frees 0>
    %b = sched.compute "beside" (%x) flops "D" reads "D" writes "D" on "compute" in B.0 : (!t) -> !t
    // CHECK: "last"(%b) {{.*}} memory <[], frees 0, last 0>
    sched.compute "last" (%b) flops "D" reads "D" writes "D" on "compute" in B.0 : (!t) -> ()
    // CHECK: "reader"(%r) {{.*}} memory <[temporaries], frees 0>
    %c = sched.compute "reader" (%r) flops "D" reads "D" writes "D" on "compute" in B.0 : (!t) -> !t
    // Who reads it at once waits at once.
    // CHECK: "all_gather"(%c) {{.*}} memory <[temporaries], frees 0>
    %g = sched.collective "all_gather" (%c) over [tp] in "bf16" bytes "8" to "16" on "comm.tp" in B.0 : (!t) -> !t
    sched.compute "reader" (%g) flops "D" reads "D" writes "D" on "compute" in B.0 : (!t) -> ()
    stg.yield
  }
  stg.output
}
