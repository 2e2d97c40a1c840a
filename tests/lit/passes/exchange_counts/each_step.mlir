// Of an exchange in two steps each tells its counts: how many copies come to a node, then how many to a device.
// RUN: stagec-opt %s -p exchange-counts | filecheck %s

%c = "test.op"() : () -> !stg.tensor<[P/en, U/el, D], bf16>
// CHECK: %[[COPIES:[^ ]*]], %[[COUNTS:[^ ]*]] = stg.fan_out
%f, %n = stg.fan_out %c to "Q" "V" dropless : (!stg.tensor<[P/en, U/el, D], bf16>) -> (!stg.tensor<[Q/en, V/el, D], bf16>, !stg.tensor<[Q/en], i64>)
// CHECK-NEXT: dist.exchange_counts %[[COUNTS]] over [el]
// CHECK-NEXT: dist.all_to_all %[[COPIES]]
%e = dist.all_to_all %f gather "V" scatter "Q" over [el] : !stg.tensor<[Q/en, V/el, D], bf16> -> !stg.tensor<[Q/(en*el), V, D], bf16>
