// The sum keeps the order of its dims, whatever is added first.
// RUN: stagec-opt %s -p defer-reductions | filecheck %s

%b, %p, %q = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16, partial [tp]>)
%x = dist.reshard %p : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B/tp, D], bf16>
%y = dist.reshard %q : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B/tp, D], bf16>
%s = stg.add %x, %b : (!stg.tensor<[B/tp, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B/tp, D], bf16>
// CHECK:      %[[BOTH:.*]] = stg.add %p, %q
// CHECK-NEXT: %[[ONCE:.*]] = dist.reshard %[[BOTH]]
// CHECK-NEXT: stg.add %[[ONCE]], %b {{.*}} -> !stg.tensor<[B/tp, D], bf16>
%t = stg.add %s, %y : (!stg.tensor<[B/tp, D], bf16>, !stg.tensor<[B/tp, D], bf16>) -> !stg.tensor<[B/tp, D], bf16>
"test.op"(%t) : (!stg.tensor<[B/tp, D], bf16>) -> ()

// A bias that stands first turns the dims, and the sum keeps them turned.
%p2, %q2 = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16, partial [tp]>)
%x2 = dist.reshard %p2 : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B/tp, D], bf16>
%y2 = dist.reshard %q2 : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B/tp, D], bf16>
%s2 = stg.add %b, %x2 : (!stg.tensor<[D], bf16>, !stg.tensor<[B/tp, D], bf16>) -> !stg.tensor<[D, B/tp], bf16>
// CHECK:      %[[ONCE2:.*]] = dist.reshard
// CHECK-NEXT: stg.add %b, %[[ONCE2]] {{.*}} -> !stg.tensor<[D, B/tp], bf16>
%t2 = stg.add %s2, %y2 : (!stg.tensor<[D, B/tp], bf16>, !stg.tensor<[B/tp, D], bf16>) -> !stg.tensor<[D, B/tp], bf16>
"test.op"(%t2) : (!stg.tensor<[D, B/tp], bf16>) -> ()
