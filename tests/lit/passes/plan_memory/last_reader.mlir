// The last reader of a value frees it: the backward pass follows the forward pass, and what is later in a segment follows what is earlier.
// RUN: stagec-opt %s -p plan-memory | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "mb" = "2"
dist.mesh <dp = 1>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    // CHECK: sched.compute "a"{{.*}} in F.0 memory <[temporaries]>
    %a = sched.compute "a" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    // CHECK: sched.compute "b"{{.*}} in F.0 memory <[temporaries]>
    %b = sched.compute "b" (%a) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    // CHECK: sched.compute "c"{{.*}} in F.0 memory <[temporaries]>
    %c = sched.compute "c" (%a, %b) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t, !t) -> !t
    // CHECK: sched.compute "d"{{.*}} in F.0 memory <[temporaries], frees 1>
    %d = sched.compute "d" (%a, %b) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t, !t) -> !t
    // CHECK: sched.compute "e"{{.*}} in B.1 memory <[], frees 0 1 2>
    sched.compute "e" (%a, %c, %d) flops "B" reads "B" writes "B" on "compute" in B.1 : (!t, !t, !t) -> ()
    // CHECK: sched.compute "f"{{.*}} in B.1 memory <[], frees 0>
    sched.compute "f" (%x) flops "B" reads "B" writes "B" on "compute" in B.1 : (!t) -> ()
    stg.yield
  }
  stg.output
}
