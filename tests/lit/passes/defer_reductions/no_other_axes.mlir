// Terms that are partial over different axes are not added before.
// RUN: stagec-opt %s -p defer-reductions | filecheck %s

// CHECK-NOT: made_by
%a, %b = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16, partial [cp]>)
%ra = dist.reshard %a : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
%rb = dist.reshard %b : !stg.tensor<[B, D], bf16, partial [cp]> -> !stg.tensor<[B, D], bf16>
%t = stg.add %ra, %rb : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
"test.op"(%t) : (!stg.tensor<[B, D], bf16>) -> ()
