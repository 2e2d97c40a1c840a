// Types that are none: a dtype that there is not, a dim or an axis twice, a stack of something else.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `float` is not a dtype
%x = "test.op"() : () -> !stg.tensor<[B], float>

// -----

// CHECK: error[E0708]: a dim appears twice in [B, D, B]
%x = "test.op"() : () -> !stg.tensor<[B, D, B], fp32>

// -----

// CHECK: error[E0708]: an axis is used twice in <[B/tp, D/tp], fp32>
%x = "test.op"() : () -> !stg.tensor<[B/tp, D/tp], fp32>

// -----

// CHECK: error[E0708]: an axis is used twice in <[B/tp], fp32, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[B/tp], fp32, partial [tp]>

// -----

// CHECK: error[E0708]: expected a tensor, a shard or a stack
%x = "test.op"() : () -> !stg.stack<"L" x i32>

// -----

// CHECK: error[E0708]: `L L` is not a size
%x = "test.op"() : () -> !stg.stack<"L L" x !stg.tensor<[B], fp32>>
