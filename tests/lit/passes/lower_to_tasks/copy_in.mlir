// Gradients that travel together are copied into one buffer, in the dtype that they travel in.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <dp = 4>
stg.program "M" (%a: !stg.tensor<[D, F], bf16, partial [dp]>, %b: !stg.tensor<[D], bf16, partial [dp]>) {
  // CHECK:      sched.compute "copy_in"(%{{[^,]*}}, %{{[^)]*}}) flops "0" reads "2*D*F + 2*D" writes "4*F*dp*ceildiv(D, dp) + 4*dp*ceildiv(D, dp)" on "compute"
  // CHECK-SAME: -> (!stg.tensor<[D, F], fp32, partial [dp]>, !stg.tensor<[D], fp32, partial [dp]>)
  // CHECK-NEXT: sched.collective "reduce_scatter"(%{{[^)]*}}) over [dp] in "fp32" bytes "4*F*dp*ceildiv(D, dp) + 4*dp*ceildiv(D, dp)"
  %c, %d = dist.reduce_shard (%a, %b) over [dp] in "fp32" {copied}
    : (!stg.tensor<[D, F], bf16, partial [dp]>, !stg.tensor<[D], bf16, partial [dp]>)
    -> (!dist.shard<!stg.tensor<[D, F], bf16> over [dp]>, !dist.shard<!stg.tensor<[D], bf16> over [dp]>)
  stg.output
}
