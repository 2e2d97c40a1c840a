// An RMS norm over a split width takes one sum, of squares in fp32.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%x, %w = "test.op"() : () -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[D/tp], bf16>)
// CHECK:      stg.unary "square" %x
// CHECK:      %[[PART:[^ ]*]] = stg.reduce "mean" {{.*}} -> !stg.tensor<[B], fp32, partial [tp]>
// CHECK-NEXT: %[[MEAN:[^ ]*]] = dist.reshard %[[PART]]
// CHECK-NEXT: stg.unary "rsqrt" %[[MEAN]]
// CHECK-NOT:  dist.
%y, %rstd = stg.rms_norm %x weight %w over [D]
  : (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[D/tp], bf16>) -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[B], fp32>)
"test.op"(%y, %rstd) : (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[B], fp32>) -> ()
