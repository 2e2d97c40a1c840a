// The gradient of a user's op: linear in the cotangents.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %x, %w = "test.op"() : () -> (!stg.tensor<[B/dp, F], bf16, partial [tp]>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[D, F], bf16>)

// CHECK: %dx, %dw = stg.user_grad "mixer"(%dy, %x, %w) flops "4*B*D*F" bytes "0" : (!stg.tensor<[B/dp, F], bf16, partial [tp]>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[D, F], bf16>) -> (!stg.tensor<[B/dp, D], bf16, partial [tp]>, !stg.tensor<[D, F], bf16, partial [dp, tp]>)
%dx, %dw = stg.user_grad "mixer" (%dy, %x, %w) flops "4*B*D*F" bytes "0"
  : (!stg.tensor<[B/dp, F], bf16, partial [tp]>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[D, F], bf16>) -> (!stg.tensor<[B/dp, D], bf16, partial [tp]>, !stg.tensor<[D, F], bf16, partial [dp, tp]>)

// CHECK: %da = stg.user_grad "loop"(%x, %x) flops "0" bytes "0" kernels "115" : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
%da = stg.user_grad "loop" (%x, %x) flops "0" bytes "0" kernels "115"
  : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>

// CHECK: %de = stg.user_grad "widened"(%x) flops "0" bytes "6*B*D" scalars "2*B*D" :
%de = stg.user_grad "widened" (%x) flops "0" bytes "6*B*D" scalars "2*B*D" : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
