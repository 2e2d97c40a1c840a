// An axis that splits other dims leaves each device its own statistics.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, T], bf16>
// CHECK: stg.softmax %x
// CHECK-NOT: made_by
%y = stg.softmax %x over [T] : (!stg.tensor<[B/dp, T], bf16>) -> !stg.tensor<[B/dp, T], bf16>
"test.op"(%y) : (!stg.tensor<[B/dp, T], bf16>) -> ()
