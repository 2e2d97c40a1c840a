// Its gradient takes one.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%d, %y = "test.op"() : () -> (!stg.tensor<[B, T/cp], bf16>, !stg.tensor<[B, T/cp], bf16>)
// CHECK:      %[[PART:[^ ]*]] = stg.reduce "sum" {{.*}} over [T]
// CHECK-NEXT: dist.reshard %[[PART]]
// CHECK-NOT:  dist.
%x = stg.softmax_grad %d, %y over [T] : (!stg.tensor<[B, T/cp], bf16>, !stg.tensor<[B, T/cp], bf16>) -> !stg.tensor<[B, T/cp], bf16>
"test.op"(%x) : (!stg.tensor<[B, T/cp], bf16>) -> ()
