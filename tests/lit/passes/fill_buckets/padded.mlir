// A bucket that is to end at a multiple of 8 elements and of the three ranks has a member that pads it; one that ends there has none.
// RUN: stagec-opt %s -p fill-buckets | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!t over [dp]>
stg.dim "B" = "12"
dist.mesh <dp = 3>
stg.program "M" (%g : !stg.stack<"3" x !t>) {
  %s = stg.repeat "3" slice(%t = %g : !stg.stack<"3" x !t>) -> (!stg.stack<"3" x !s>) {
    %r = sched.collective "reduce_scatter" (%t) over [dp] in "bf16" bytes "24" to "8" on "comm.dp" bucket 48 first 48 in step.0
      {phase = "grad_reduce", bucket_end = 8 : i64} : (!t) -> !s
    stg.yield %r : !s
  }
  // CHECK: sched.collective "reduce_scatter"() over [dp] in "bf16" bytes "24" to "8" on "comm.dp" {{.*}} in step.1 {{.*}}pads
  stg.output
}
// CHECK: step = "0@0 ~0@1 0@2 ~1"
sched.tasks @model of "" layers {} {
  step = "(0@0+1)*3"
}
