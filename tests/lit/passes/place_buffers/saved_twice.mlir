// What a backward pass reads of two microbatches is in two places, what lives within a pass where there is room; the first to be freed is the first to be taken again.
// RUN: stagec-opt %s -p place-buffers | filecheck %s

!t = !stg.tensor<[B], bf16>
stg.dim "mb" = "4"
stg.dim "B" = "512"
dist.mesh <dp = 1>
stg.program "M" () {
  stg.accumulate over "mb" {
    %a = sched.compute "saved" () flops "B" reads "B" writes "B" on "compute" in F.0 memory <[temporaries]> : () -> !t
    %b = sched.compute "within" (%a) flops "B" reads "B" writes "B" on "compute" in F.0 memory <[temporaries]> : (!t) -> !t
    sched.compute "last" (%b) flops "B" reads "B" writes "B" on "compute" in F.0 memory <[], frees 0> : (!t) -> ()
    sched.compute "backward" (%a) flops "B" reads "B" writes "B" on "compute" in B.1 memory <[], frees 0> : (!t) -> ()
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "0",
  B = "1"
}
sched.program @all runs [0 @model] order "F:0.0 F:0.1 (B:0.0+1 F:0.2+1)*2 B:0.2 B:0.3"
sched.ranks "all" at {} run @all
sched.stored of "" {}

// CHECK:      sched.arena of "all" bytes 3072 live 3072 {
// CHECK-NEXT:   0 = "0 1024",
// CHECK-NEXT:   1 = "1024 2048",
// CHECK-NEXT:   2 = "",
// CHECK-NEXT:   3 = "0 2048"
// CHECK-NEXT: } "0 1 2 3 2 1 2 2"
