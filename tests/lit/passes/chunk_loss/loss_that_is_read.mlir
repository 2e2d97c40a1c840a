// A loss that is read, by the term of another loss, is the sum of the chunks' terms.
// RUN: stagec-opt %s -p 'chunk-loss{chunks=4}' | filecheck %s

stg.dim "S" = "8"
stg.program "M" (%l : !stg.tensor<[S, V], bf16>, %t : !stg.tensor<[S], i32>, %more : !stg.tensor<[], fp32>) {
  // CHECK: %[[TOTAL:[^ ]*]] = stg.repeat "loss.chunk" carry(%[[SUM:[^ ]*]] =
  // CHECK: %[[TERM:[^ ]*]], %{{[^ ]*}} = stg.cross_entropy
  // CHECK-NEXT: stg.add %[[SUM]], %[[TERM]] {{.*}}in_place
  %loss, %lse = stg.cross_entropy %l, %t : (!stg.tensor<[S, V], bf16>, !stg.tensor<[S], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[S], fp32>)
  // CHECK: stg.add %[[TOTAL]], %more
  %both = stg.add %loss, %more : (!stg.tensor<[], fp32>, !stg.tensor<[], fp32>) -> !stg.tensor<[], fp32>
  stg.output %both : !stg.tensor<[], fp32>
}
