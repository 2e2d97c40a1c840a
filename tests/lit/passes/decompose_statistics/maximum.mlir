// A maximum over a split dim takes one all-reduce.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B, T/cp], bf16>
// CHECK:      %[[LOCAL:[^ ]*]] = stg.reduce "max" %x over [T] {part_of = "reduce"
// CHECK-NEXT: dist.all_reduce "max" %[[LOCAL]] over [cp]
%y = stg.reduce "max" %x over [T] : (!stg.tensor<[B, T/cp], bf16>) -> !stg.tensor<[B], bf16>
"test.op"(%y) : (!stg.tensor<[B], bf16>) -> ()
