// Rings that may run at once have channels of their own.
// RUN: stagec-opt %s -p 'overlap-gathers{axis="tp"}' | filecheck %s

dist.mesh <tp = 4>
%x, %u, %w = "test.op"() : () -> (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>)
// CHECK: dist.send{{.*}} channel 0
// CHECK: dist.recv{{.*}} channel 0
// CHECK: dist.send{{.*}} channel 1
// CHECK: dist.recv{{.*}} channel 1
%g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
%y = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
%h = dist.all_gather %u dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
%z = stg.contract %h, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
"test.op"(%y, %z) : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[S, F/tp], bf16>) -> ()
