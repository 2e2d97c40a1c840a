// Over the axes that storage is split over a gradient is scattered; what is left is all-reduced.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="rp","dp" shard_axes="dp" dtype="bf16"}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[F], bf16>
  %dw = "test.op"() : () -> !stg.tensor<[F], fp32, partial [dp, rp]>
  // CHECK:      %[[SHARD:[^ ]*]] = dist.reduce_shard(%dw) over [dp] in "bf16"
  // CHECK-NEXT: dist.all_reduce_shard(%[[SHARD]]) over [rp] in "bf16"
  stg.output weights %w : !stg.tensor<[F], bf16> gradients %dw : !stg.tensor<[F], fp32, partial [dp, rp]>
}
