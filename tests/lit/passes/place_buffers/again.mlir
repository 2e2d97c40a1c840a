// Offsets that stand there are found anew.
// RUN: stagec-opt %s -p place-buffers | filecheck %s

!t = !stg.tensor<[B], bf16>
stg.dim "mb" = "1"
stg.dim "B" = "512"
dist.mesh <dp = 1>
stg.program "M" () {
  stg.accumulate over "mb" {
    %a = sched.compute "a" () flops "B" reads "B" writes "B" on "compute" in F.0 memory <[temporaries]> : () -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "0"
}
sched.program @all runs [0 @model] order "F:0.0"
sched.ranks "all" at {} run @all
sched.stored of "" {}
sched.arena of "all" bytes 4096 live 4096 {0 = "3072"} "0"

// CHECK-NOT: 4096
// CHECK:     sched.arena of "all" bytes 1024 live 1024 {
// CHECK-NEXT:  0 = "0"
