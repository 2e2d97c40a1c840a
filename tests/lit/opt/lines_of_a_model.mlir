// An op says with `loc` which line of a model it comes from: what passes make of it does too, and so do their complaints. What the text has of its own says no line.
// RUN: stagec-opt %s -p 'decompose-all-reduce{axis="tp"}' | filecheck %s
// RUN: not stagec-opt %s -p 'decompose-all-reduce{axis="dp"}' 2>&1 | filecheck %s --check-prefix REFUSED

stg.dim "B" = "7"
dist.mesh <tp = 7, dp = 2>
%x = "test.op"() : () -> !stg.tensor<[B], bf16, partial [tp, dp]>

// CHECK-NOT:  lines_of_a_model.mlir
// CHECK:      dist.reduce_scatter {{.*}} loc("net.stg":7:9)
// CHECK-NEXT: dist.all_gather {{.*}} loc("net.stg":7:9)
%y = dist.all_reduce "sum" %x over [tp] : !stg.tensor<[B], bf16, partial [tp, dp]> -> !stg.tensor<[B], bf16, partial [dp]> loc("net.stg":7:9)

// REFUSED:      error[E0301]: `dp = 2` does not divide the 7 of `B` on each rank
// REFUSED-NEXT:  --> net.stg:8:9
// CHECK-NOT:    lines_of_a_model.mlir
%z = dist.all_reduce "sum" %y over [dp] : !stg.tensor<[B], bf16, partial [dp]> -> !stg.tensor<[B], bf16> loc("net.stg":8:9)
