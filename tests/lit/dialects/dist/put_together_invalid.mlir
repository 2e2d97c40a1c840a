// The parts are those of the tensor.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.put_together`: the parts of !stg.tensor<[X/ep, D], fp32> are not !stg.stack<"X/ep" x !stg.tensor<[F], fp32>>
%s = "test.op"() : () -> !stg.stack<"X/ep" x !stg.tensor<[F], fp32>>
%a = dist.put_together %s : !stg.stack<"X/ep" x !stg.tensor<[F], fp32>> -> !stg.tensor<[X/ep, D], fp32>
