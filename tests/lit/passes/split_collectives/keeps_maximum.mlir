// Levels of a maximum are maxima.
// RUN: stagec-opt %s -p 'split-collectives{axes="dp","tp"}' | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S], fp32>
// CHECK:      %[[HALF:[^ ]*]] = dist.all_reduce "max" %x over [tp]
// CHECK-NEXT: dist.all_reduce "max" %[[HALF]] over [dp]
%g = dist.all_reduce "max" %x over [dp, tp] : !stg.tensor<[S], fp32> -> !stg.tensor<[S], fp32>
