// The transpose of a combine is a dispatch; weights and scores have gradients of their own.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], fp32>) {
  %s = stg.weight "s" : !stg.tensor<[B, X], fp32>
  %w = stg.weight "w" : !stg.tensor<[X, D], fp32>
  %g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B, X], fp32>) -> (!stg.tensor<[B, A], fp32>, !stg.tensor<[B, A], i32>)
  %r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B, D], fp32>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X, C, D], fp32>, !stg.tensor<[X], i64>)
  %y = stg.mul %r, %w : (!stg.tensor<[X, C, D], fp32>, !stg.tensor<[X, D], fp32>) -> !stg.tensor<[X, C, D], fp32>
  %o = stg.combine %y by %i weights %g : (!stg.tensor<[X, C, D], fp32>, !stg.tensor<[B, A], i32>, !stg.tensor<[B, A], fp32>) -> !stg.tensor<[B, D], fp32>
  %loss = stg.reduce "sum" %o over [B, D] : (!stg.tensor<[B, D], fp32>) -> !stg.tensor<[], fp32>
  // CHECK:     stg.dispatch %[[DY:[^ ]*]] by %i weights %g
  // CHECK:     %[[DG:[^ ]*]] = stg.combine_weight_grad %[[DY]], %y by %i
  // CHECK-NOT: stg.combine
  // CHECK:     stg.topk_grad %[[DG]], %g, %i
  stg.output %loss : !stg.tensor<[], fp32>
}
