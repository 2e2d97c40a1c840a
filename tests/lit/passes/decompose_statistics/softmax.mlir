// A softmax over a split dim takes two all-reduces: of the maximum, and of the sum of exponentials.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B, T/cp], bf16>
// CHECK:      %[[LOCAL:[^ ]*]] = stg.reduce "max" %x over [T]
// CHECK-NEXT: %[[MAX:[^ ]*]] = dist.all_reduce "max" %[[LOCAL]] over [cp]
// CHECK-NEXT: %[[SHIFTED:[^ ]*]] = stg.sub %x, %[[MAX]]
// CHECK-NEXT: %[[POWERS:[^ ]*]] = stg.unary "exp" %[[SHIFTED]]
// CHECK-NEXT: %[[PART:[^ ]*]] = stg.reduce "sum" %[[POWERS]] over [T]
// CHECK-NEXT: %[[SUM:[^ ]*]] = dist.reshard %[[PART]] {{.*}} partial [cp]> -> !stg.tensor<[B], bf16>
// CHECK-NEXT: stg.div %[[POWERS]], %[[SUM]]
%y = stg.softmax %x over [T] : (!stg.tensor<[B, T/cp], bf16>) -> !stg.tensor<[B, T/cp], bf16>
"test.op"(%y) : (!stg.tensor<[B, T/cp], bf16>) -> ()
