// A reduced term that something else reads is reduced for that anyway.
// RUN: stagec-opt %s -p defer-reductions | filecheck %s

// CHECK-NOT: made_by
%a, %b = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16, partial [tp]>)
%ra = dist.reshard %a : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
%rb = dist.reshard %b : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
%t = stg.add %ra, %rb : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
"test.op"(%t, %rb) : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> ()
