// Parts are along the first dim, as many as a rank has of it; one dim alone has none.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.take_apart`: the parts of !stg.tensor<[X/ep, D], fp32> are not !stg.stack<"X" x !stg.tensor<[D], fp32>>
%g = "test.op"() : () -> !stg.tensor<[X/ep, D], fp32>
%a = dist.take_apart %g : !stg.tensor<[X/ep, D], fp32> -> !stg.stack<"X" x !stg.tensor<[D], fp32>>

// -----

// CHECK: error[E0709]: `dist.take_apart`: the parts of !stg.tensor<[X], fp32> are not !stg.stack<"X" x !stg.tensor<[], fp32>>
%g = "test.op"() : () -> !stg.tensor<[X], fp32>
%a = dist.take_apart %g : !stg.tensor<[X], fp32> -> !stg.stack<"X" x !stg.tensor<[], fp32>>
