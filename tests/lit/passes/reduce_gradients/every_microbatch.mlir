// Reduced in each microbatch, what adds up is whole.
// RUN: stagec-opt %s -p 'reduce-gradients{axes="dp" every_microbatch=true}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[F], bf16>
  // CHECK:      stg.accumulate over "mb" -> (!stg.tensor<[F], fp32>)
  // CHECK:      %[[SUM:[^ ]*]] = dist.all_reduce_gradient
  // CHECK-NEXT: stg.yield %[[SUM]]
  // CHECK-NOT:  dist.
  %s = stg.accumulate over "mb" -> (!stg.tensor<[F], fp32, partial [dp]>) {
    %dw = "test.op"() : () -> !stg.tensor<[F], bf16, partial [dp]>
    stg.yield %dw : !stg.tensor<[F], bf16, partial [dp]>
  }
  stg.output weights %w : !stg.tensor<[F], bf16> gradients %s : !stg.tensor<[F], fp32, partial [dp]>
}
