// A user's op that goes on from a state of each sequence.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %a, %h = "test.op"() : () -> (!stg.tensor<[B/dp, S, D/tp], bf16>, !stg.tensor<[D/tp, N], bf16>, !stg.tensor<[B/dp, sequences, D/tp, N], fp32>)

// CHECK: %y = stg.resumed_user "scan"(%x, %a) from %h over "S" flops "6*B*D*N" bytes "2*B*D" kernels "3" resumed "4" : (!stg.tensor<[B/dp, S, D/tp], bf16>, !stg.tensor<[D/tp, N], bf16>, !stg.tensor<[B/dp, sequences, D/tp, N], fp32>) -> !stg.tensor<[B/dp, S, D/tp], bf16>
%y = stg.resumed_user "scan" (%x, %a) from %h over "S" flops "6*B*D*N" bytes "2*B*D" kernels "3" resumed "4"
  : (!stg.tensor<[B/dp, S, D/tp], bf16>, !stg.tensor<[D/tp, N], bf16>, !stg.tensor<[B/dp, sequences, D/tp, N], fp32>) -> !stg.tensor<[B/dp, S, D/tp], bf16>

// CHECK: %z = stg.user "scan"(%x, %a) over "S" flops "0" bytes "0" backward_flops "0" backward_bytes "0" :
%z = stg.user "scan" (%x, %a) over "S" flops "0" bytes "0" backward_flops "0" backward_bytes "0"
  : (!stg.tensor<[B/dp, S, D/tp], bf16>, !stg.tensor<[D/tp, N], bf16>) -> !stg.tensor<[B/dp, S, D/tp], bf16>
