// A row is a segment in one iteration of each repeat around it.
// RUN: stagec-opt %s -p build-programs | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "mb" = "3"
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    %z = stg.repeat "2" carry(%h = %x : !t) -> (!t) {
      %b = sched.compute "outer" (%h) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
      %c = stg.repeat "3" carry(%k = %b : !t) -> (!t) {
        %d = sched.compute "inner" (%k) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t) -> !t
        stg.yield %d : !t
      }
      stg.yield %c : !t
    }
    stg.yield
  }
  stg.output
}

// CHECK:      sched.tasks @model of "" layers {} {
// CHECK-NEXT:   F = "(0@0+1 1@0+1.0 1@0+1.1 1@0+1.2)*2"
// CHECK-NEXT: }
// CHECK-NEXT: sched.program @all runs [0 @model] order "(F:0.0+1)*3"
// CHECK-NEXT: sched.ranks "all" at {} run @all
