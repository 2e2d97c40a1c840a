// Terms that differ in axes of size 1 alone are added first, and reduced once; over an axis that splits something they are not.
// RUN: stagec-opt %s -p defer-reductions | filecheck %s

dist.mesh <dp = 2, tp = 1, cp = 2>
stg.dim "B" = "8"
stg.dim "D" = "4"

// CHECK:      %a, %b, %c = "test.op"
// CHECK-NEXT: %[[ONE:.*]] = dist.reshard %a {{.*}} partial [dp, tp]> -> !stg.tensor<[B, D], bf16, partial [dp]>
// CHECK-NEXT: %[[SUM:.*]] = stg.add %[[ONE]], %b
// CHECK-NEXT: %[[X:.*]] = dist.reshard %[[SUM]] {{.*}} partial [dp]> -> !stg.tensor<[B/dp, D], bf16>
// CHECK-NEXT: %[[Y:.*]] = dist.reshard %c : {{.*}} partial [dp, cp]> -> !stg.tensor<[B/dp, D], bf16>
// CHECK-NEXT: stg.add %[[X]], %[[Y]]
%a, %b, %c = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [dp, tp]>, !stg.tensor<[B, D], bf16, partial [dp]>, !stg.tensor<[B, D], bf16, partial [dp, cp]>)
%p = dist.reshard %a : !stg.tensor<[B, D], bf16, partial [dp, tp]> -> !stg.tensor<[B/dp, D], bf16>
%q = dist.reshard %b : !stg.tensor<[B, D], bf16, partial [dp]> -> !stg.tensor<[B/dp, D], bf16>
%r = dist.reshard %c : !stg.tensor<[B, D], bf16, partial [dp, cp]> -> !stg.tensor<[B/dp, D], bf16>
%y = stg.add %p, %q : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
%z = stg.add %y, %r : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
"test.op"(%z) : (!stg.tensor<[B/dp, D], bf16>) -> ()
