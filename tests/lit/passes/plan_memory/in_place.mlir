// A sum over ranks takes the memory of its terms where nobody else reads them; what an op overwrites, it always takes.
// RUN: stagec-opt %s -p plan-memory | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "mb" = "2"
dist.mesh <tp = 2>
stg.program "M" (%x : !t) {
  %cache = stg.cache "k" : !t
  stg.accumulate over "mb" {
    %a = sched.compute "a" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    // CHECK: sched.collective "all_reduce"(%a){{.*}} memory <[temporaries in 0], frees 0>
    %b = sched.collective "all_reduce" (%a) over [tp] in "bf16" bytes "B" to "B" on "comm.tp" in F.0 effects <overwrites 0 by 0 alone> : (!t) -> !t
    // CHECK: sched.collective "all_reduce"(%b){{.*}} memory <[temporaries]>
    %c = sched.collective "all_reduce" (%b) over [tp] in "bf16" bytes "B" to "B" on "comm.tp" in F.0 effects <overwrites 0 by 0 alone> : (!t) -> !t
    // CHECK: sched.compute "add"{{.*}} memory <[temporaries in 1], frees 0 1>
    %d = sched.compute "add" (%b, %c) flops "B" reads "B" writes "B" on "compute" in F.0 effects <overwrites 1 by 0> : (!t, !t) -> !t
    // CHECK: sched.compute "append"{{.*}} memory <[temporaries stored], frees 1>
    %e = sched.compute "append" (%cache, %d) flops "B" reads "B" writes "B" on "compute" in F.0 effects <overwrites 0 by 0> : (!t, !t) -> !t
    stg.yield
  }
  stg.output
}
// CHECK: sched.stored of "" {
// CHECK-NEXT: "k" cache "2*B"
// CHECK-NEXT: }
