// Every device gets as large a shard.
// RUN: not stagec-opt %s -p 'decompose-all-reduce{axis="tp" scatter="S"}' 2>&1 | filecheck %s

stg.dim "S" = "12"
dist.mesh <cp = 2, tp = 4>
%p = "test.op"() : () -> !stg.tensor<[S/cp, D], bf16, partial [tp]>
%a = dist.all_reduce "sum" %p over [tp] : !stg.tensor<[S/cp, D], bf16, partial [tp]> -> !stg.tensor<[S/cp, D], bf16>

// CHECK:      error[E0301]: `tp = 4` does not divide the 6 of `S` on each rank
// CHECK-NEXT:  --> {{.*}}does_not_divide.mlir:7:1
// CHECK-NEXT:   |
// CHECK-NEXT: 7 | %a = dist.all_reduce "sum" %p over [tp]
// CHECK-NEXT:   | ^
// CHECK-NEXT:   = help: scatter another dim
