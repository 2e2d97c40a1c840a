// An all-reduce starts with the axis that is named last.
// RUN: stagec-opt %s -p 'split-collectives{axes="tp","dp"}' | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S, D], bf16, partial [dp, tp]>
// CHECK:      %[[HALF:[^ ]*]] = dist.all_reduce "sum" %x over [dp]
// CHECK-NEXT: dist.all_reduce "sum" %[[HALF]] over [tp]
%g = dist.all_reduce "sum" %x over [dp, tp] : !stg.tensor<[S, D], bf16, partial [dp, tp]> -> !stg.tensor<[S, D], bf16>
