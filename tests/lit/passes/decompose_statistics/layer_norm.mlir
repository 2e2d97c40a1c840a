// A layer norm takes two sums: the squares are of what is left after the mean.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B, D/tp], bf16>
// CHECK:     %[[MEAN:[^ ]*]] = dist.reshard
// CHECK:     stg.sub %x
// CHECK:     stg.unary "square"
// CHECK:     dist.reshard
// CHECK-NOT: dist.
%y, %m, %r = stg.layer_norm %x over [D] : (!stg.tensor<[B, D/tp], bf16>) -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>)
"test.op"(%y) : (!stg.tensor<[B, D/tp], bf16>) -> ()
