// What arrived in a node in fp8 goes on as it came. On the way back sums are made in the tokens' own dtype, and cast for each step.
// RUN: stagec-opt %s -p 'cast-exchanges{dispatch="fp8" combine="fp8"}' | filecheck %s

%x, %i, %y = "test.op"() : () -> (!stg.tensor<[B/(en*el), D], bf16>, !stg.tensor<[B/(en*el), A], i32>, !stg.tensor<[Q/(en*el), V, D], bf16>)
// CHECK:      %[[X8:[^ ]*]] = stg.cast %x
// CHECK-NEXT: stg.dispatch %[[X8]]
%c, %n = stg.dispatch %x by %i to "P" "U" dropless
  : (!stg.tensor<[B/(en*el), D], bf16>, !stg.tensor<[B/(en*el), A], i32>) -> (!stg.tensor<[P, U/(el*en), D], bf16>, !stg.tensor<[P], i64>)
// CHECK-NEXT: %[[NODE:[^ ]*]] = dist.all_to_all {{.*}} over [en]
%d = dist.all_to_all %c gather "U" scatter "P" over [en] : !stg.tensor<[P, U/(el*en), D], bf16> -> !stg.tensor<[P/en, U/el, D], bf16>
// CHECK-NEXT: stg.fan_out %[[NODE]]
%f, %m = stg.fan_out %d to "Q" "V" dropless : (!stg.tensor<[P/en, U/el, D], bf16>) -> (!stg.tensor<[Q/en, V/el, D], bf16>, !stg.tensor<[Q/en], i64>)
// CHECK-NEXT: %[[DEVICE:[^ ]*]] = dist.all_to_all {{.*}} over [el] {{.*}} !stg.tensor<[Q/(en*el), V, D], fp8>
// CHECK-NEXT: stg.cast %[[DEVICE]]
%e = dist.all_to_all %f gather "V" scatter "Q" over [el] : !stg.tensor<[Q/en, V/el, D], bf16> -> !stg.tensor<[Q/(en*el), V, D], bf16>
// CHECK:      %[[Y8:[^ ]*]] = stg.cast %y
// CHECK-NEXT: %[[BACK:[^ ]*]] = dist.all_to_all %[[Y8]]
// CHECK-NEXT: %[[TERMS:[^ ]*]] = stg.cast %[[BACK]]
%b = dist.all_to_all %y gather "Q" scatter "V" over [el] : !stg.tensor<[Q/(en*el), V, D], bf16> -> !stg.tensor<[Q/en, V/el, D], bf16>
// CHECK-NEXT: %[[SUM:[^ ]*]] = stg.fan_in %[[TERMS]]
%s = stg.fan_in %b to "P" "U" : (!stg.tensor<[Q/en, V/el, D], bf16>) -> !stg.tensor<[P/en, U/el, D], bf16>
// CHECK-NEXT: %[[S8:[^ ]*]] = stg.cast %[[SUM]]
// CHECK-NEXT: dist.all_to_all %[[S8]]
%t = dist.all_to_all %s gather "P" scatter "U" over [en] : !stg.tensor<[P/en, U/el, D], bf16> -> !stg.tensor<[P, U/(el*en), D], bf16>
%o = stg.combine %t by %i : (!stg.tensor<[P, U/(el*en), D], bf16>, !stg.tensor<[B/(en*el), A], i32>) -> !stg.tensor<[B/(en*el), D], bf16>
"test.op"(%e, %o) : (!stg.tensor<[Q/(en*el), V, D], bf16>, !stg.tensor<[B/(en*el), D], bf16>) -> ()
