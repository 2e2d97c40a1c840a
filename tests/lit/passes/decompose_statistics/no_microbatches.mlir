// A microbatch has statistics of its own: nothing is reduced over time.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/mb, T], bf16>
// CHECK: stg.softmax %x
// CHECK-NOT: made_by
%y = stg.softmax %x over [B] : (!stg.tensor<[B/mb, T], bf16>) -> !stg.tensor<[B/mb, T], bf16>
"test.op"(%y) : (!stg.tensor<[B/mb, T], bf16>) -> ()
