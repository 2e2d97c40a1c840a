// A change of placement that sums nothing stays where it is.
// RUN: stagec-opt %s -p defer-reductions | filecheck %s

// CHECK-NOT: made_by
%a, %b = "test.op"() : () -> (!stg.tensor<[B/tp, D], bf16>, !stg.tensor<[B/tp, D], bf16>)
%ra = dist.reshard %a : !stg.tensor<[B/tp, D], bf16> -> !stg.tensor<[B, D], bf16>
%rb = dist.reshard %b : !stg.tensor<[B/tp, D], bf16> -> !stg.tensor<[B, D], bf16>
%t = stg.add %ra, %rb : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
"test.op"(%t) : (!stg.tensor<[B, D], bf16>) -> ()
