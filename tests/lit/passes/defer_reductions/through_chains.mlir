// In a chain of sums, terms that are reduced alike are added before, wherever they stand.
// RUN: stagec-opt %s -p defer-reductions | filecheck %s

%a, %x, %b = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16, partial [tp]>)
// CHECK:      %[[TERMS:[^ ]*]] = stg.add %a, %b
// CHECK-NEXT: %[[ONCE:[^ ]*]] = dist.reshard %[[TERMS]] {{.*}}partial [tp]> -> !stg.tensor<[B, D], bf16>
// CHECK-NEXT: stg.add %x, %[[ONCE]]
// CHECK-NOT:  dist.reshard
%ra = dist.reshard %a : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
%rb = dist.reshard %b : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
%s = stg.add %ra, %x : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
%t = stg.add %s, %rb : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
"test.op"(%t) : (!stg.tensor<[B, D], bf16>) -> ()
