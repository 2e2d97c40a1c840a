// What an iteration hands to the next has readers that differ between iterations: each of them may be the last.
// RUN: stagec-opt %s -p plan-memory | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "mb" = "2"
dist.mesh <dp = 1>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    %y = stg.repeat "4" carry(%h = %x : !t) -> (!t) {
      // CHECK: sched.compute "a"{{.*}} memory <[temporaries], frees 0>
      %a = sched.compute "a" (%h) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
      // CHECK: sched.compute "b"{{.*}} memory <[temporaries], frees 0 1>
      %b = sched.compute "b" (%h, %a) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t, !t) -> !t
      stg.yield %b : !t
    }
    // CHECK: sched.compute "c"{{.*}} memory <[], frees 0>
    sched.compute "c" (%y) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t) -> ()
    stg.yield
  }
  stg.output
}
