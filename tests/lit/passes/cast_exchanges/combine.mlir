// What experts made is cast before it travels, and back before it is added up.
// RUN: stagec-opt %s -p 'cast-exchanges{combine="bf16"}' | filecheck %s

%y, %i = "test.op"() : () -> (!stg.tensor<[X/ep, C, D], fp32>, !stg.tensor<[B/ep, A], i32>)
// CHECK:      %[[SENT:.*]] = stg.cast %y {{.*}} -> !stg.tensor<[X/ep, C, D], bf16>
// CHECK-NEXT: %[[HERE:.*]] = dist.all_to_all %[[SENT]] gather "X" scatter "C" over [ep] {{.*}} -> !stg.tensor<[X, C/ep, D], bf16>
// CHECK-NEXT: %[[BACK:.*]] = stg.cast %[[HERE]] {{.*}} -> !stg.tensor<[X, C/ep, D], fp32>
// CHECK-NEXT: stg.combine %[[BACK]] by %i
%b = dist.all_to_all %y gather "X" scatter "C" over [ep] : !stg.tensor<[X/ep, C, D], fp32> -> !stg.tensor<[X, C/ep, D], fp32>
%z = stg.combine %b by %i : (!stg.tensor<[X, C/ep, D], fp32>, !stg.tensor<[B/ep, A], i32>) -> !stg.tensor<[B/ep, D], fp32>
