// A state is one of each sequence.
// RUN: not stagec-opt %s 2>&1 | filecheck %s

%x, %h = "test.op"() : () -> (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[B, D, N], fp32>)

// CHECK: <[B, D, N], fp32> is not a state of sequences
%y = stg.resumed_user "scan" (%x) from %h over "S" flops "6*B*D*N" bytes "2*B*D" resumed "4"
  : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[B, D, N], fp32>) -> !stg.tensor<[B, S, D], bf16>
