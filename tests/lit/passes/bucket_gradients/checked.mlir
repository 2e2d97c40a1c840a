// The host reads the norm of each bucket of gradients before it is reduced; of parameters that are gathered in the same buckets it reads nothing.
// RUN: stagec-opt %s -p 'bucket-gradients{bucket_bytes=1000 checked=true},lower-to-tasks' | filecheck %s
!g = !stg.tensor<[D], fp32, partial [dp]>
!w = !stg.tensor<[D], bf16>
!s = !dist.shard<!w over [dp]>
!r = !dist.shard<!stg.tensor<[D], fp32> over [dp]>
stg.dim "D" = "8"
dist.mesh <dp = 2>
stg.program "M" (%g : !g) {
  %w = stg.weight "w" : !w
  // CHECK: sched.collective "reduce_scatter"{{.*}}checked
  %a = dist.reduce_shard (%g) over [dp] in "fp32" {phase = "grad_reduce"} : (!g) -> !r
  %p = dist.take_shard (%w) over [dp] in "bf16" : (!w) -> !s
  // CHECK: sched.collective "all_gather"
  // CHECK-NOT: checked
  %y = dist.unshard (%p) over [dp] in "bf16" {phase = "fwd"} : (!s) -> !w
  stg.output
}
