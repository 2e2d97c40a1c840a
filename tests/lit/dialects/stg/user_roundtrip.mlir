// An op that the model declares states its costs; a dim that only its results have may be split.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %w = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[D, F/tp], bf16>)

// CHECK: %y = stg.user "mixer"(%x, %w) flops "2*B*D*F" bytes "2*B*F" backward_flops "4*B*D*F" backward_bytes "0" : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, F/tp], bf16>
%y = stg.user "mixer" (%x, %w) flops "2*B*D*F" bytes "2*B*F" backward_flops "4*B*D*F" backward_bytes "0"
  : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, F/tp], bf16>

// CHECK: %z = stg.user "triangle"(%x) flops "B*P" bytes "0" backward_flops "0" backward_bytes "0" : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, P/tp], bf16>
%z = stg.user "triangle" (%x) flops "B*P" bytes "0" backward_flops "0" backward_bytes "0"
  : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, P/tp], bf16>

// Of several kernels, or with a gradient of several.
// CHECK: %k = stg.user "loop"(%x) flops "B*D" bytes "0" backward_flops "0" backward_bytes "0" kernels "34" backward_kernels "115" : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
%k = stg.user "loop" (%x) flops "B*D" bytes "0" backward_flops "0" backward_bytes "0" kernels "34" backward_kernels "115"
  : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>

// Whose kernels compute elements one by one.
// CHECK: %e = stg.user "widened"(%x) flops "0" bytes "6*B*D" backward_flops "0" backward_bytes "6*B*D" scalars "B*D" backward_scalars "2*B*D" backward_reads [] :
%e = stg.user "widened" (%x) flops "0" bytes "6*B*D" backward_flops "0" backward_bytes "6*B*D" scalars "B*D" backward_scalars "2*B*D" backward_reads []
  : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], fp32>

// Whose gradient reads no operand, or some.
// CHECK: %c = stg.user "copied"(%x) flops "0" bytes "0" backward_flops "0" backward_bytes "0" backward_reads [] : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
%c = stg.user "copied" (%x) flops "0" bytes "0" backward_flops "0" backward_bytes "0" backward_reads []
  : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
// CHECK: backward_reads [1] :
%s = stg.user "scaled" (%x, %w) flops "0" bytes "0" backward_flops "0" backward_bytes "0" backward_reads [1]
  : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B/dp, F/tp], bf16>
