// A table that all ranks have, of other samples each, has a gradient as other weights; so has one that a product reads too.
// RUN: stagec-opt %s -p 'update-rows{algorithm="sgd"}' | filecheck %s

// CHECK-NOT: stg.update_rows
// CHECK:     stg.output weights %t, %u
dist.mesh <dp = 2>
stg.program "M" () {
  %t = stg.weight "t" : !stg.tensor<[R, E], fp32>
  %u = stg.weight "u" : !stg.tensor<[R, E], fp32>
  %i, %dy, %k = "test.op"() : () -> (!stg.tensor<[B/dp, J], i32>, !stg.tensor<[B/dp, E], fp32>, !stg.tensor<[R, E], fp32, partial [dp]>)
  %g = stg.embedding_bag_grad %i, %dy over "J"
    : (!stg.tensor<[B/dp, J], i32>, !stg.tensor<[B/dp, E], fp32>) -> !stg.tensor<[R, E], fp32, partial [dp]>
  %h = stg.embedding_bag_grad %i, %dy over "J"
    : (!stg.tensor<[B/dp, J], i32>, !stg.tensor<[B/dp, E], fp32>) -> !stg.tensor<[R, E], fp32, partial [dp]>
  %s = stg.add %h, %k : (!stg.tensor<[R, E], fp32, partial [dp]>, !stg.tensor<[R, E], fp32, partial [dp]>) -> !stg.tensor<[R, E], fp32, partial [dp]>
  stg.output weights %t, %u : !stg.tensor<[R, E], fp32>, !stg.tensor<[R, E], fp32>
    gradients %g, %s : !stg.tensor<[R, E], fp32, partial [dp]>, !stg.tensor<[R, E], fp32, partial [dp]>
}
