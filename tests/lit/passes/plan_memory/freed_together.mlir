// What ops read that make the gradients of one op is freed with the last of them, as a node of autograd does.
// RUN: stagec-opt %s -p plan-memory | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "mb" = "2"
dist.mesh <dp = 1>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    %a = sched.compute "a" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    %b = sched.compute "b" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    // CHECK: sched.compute "left"{{.*}} memory <[temporaries], frees 1, keeps 1 until 0>
    %l = sched.compute "left" (%x, %b) flops "B" reads "B" writes "B" on "compute" in B.1 {gradient_of = 7 : i64} : (!t, !t) -> !t
    // CHECK: sched.compute "other"{{.*}} memory <[], frees 0>
    sched.compute "other" (%l) flops "B" reads "B" writes "B" on "compute" in B.1 : (!t) -> ()
    // CHECK: sched.compute "right"{{.*}} memory <[], frees 0 1, last 0>
    sched.compute "right" (%x, %a) flops "B" reads "B" writes "B" on "compute" in B.1 {gradient_of = 7 : i64} : (!t, !t) -> ()
    stg.yield
  }
  stg.output
}
