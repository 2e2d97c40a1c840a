// A collective is repeated where a value that is read comes of it, and goes with the value that it moves.
// RUN: stagec-opt %s -p 'recompute-activations{what="contract","exp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, F/tp], bf16>) {
  %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[F/tp], bf16>>
  // CHECK: stg.yield %{{[^,]*}}, %{{[^,]*}} :
  %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, F/tp], bf16>)
      slice(%v = %w : !stg.stack<"L" x !stg.tensor<[F/tp], bf16>>)
      -> (!stg.tensor<[B, F/tp], bf16>, !stg.stack<"L" x !stg.tensor<[B], bf16>>) {
    %p = stg.contract %h, %v over [F]
      : (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[F/tp], bf16>) -> !stg.tensor<[B], bf16, partial [tp]>
    %r = dist.all_reduce "sum" %p over [tp] : !stg.tensor<[B], bf16, partial [tp]> -> !stg.tensor<[B], bf16>
    %e = stg.unary "exp" %r : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    %n = stg.mul %h, %e
      : (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B, F/tp], bf16>
    stg.yield %n, %e : !stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B], bf16>
  }
  // CHECK:      reverse
  // CHECK-NEXT: %[[P:.*]] = stg.contract {{.*}}phase = "recompute"
  // CHECK-NEXT: %[[R:.*]] = dist.all_reduce "sum" %[[P]] {{.*}}phase = "recompute"
  // CHECK-NEXT: %[[E:.*]] = stg.unary "exp" %[[R]] {{.*}}phase = "recompute"
  // CHECK-NEXT: stg.mul %{{.*}}, %[[E]]
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, F/tp], bf16>)
      slice(%s = %es : !stg.stack<"L" x !stg.tensor<[B], bf16>>)
      -> (!stg.tensor<[B, F/tp], bf16>) attributes {phase = "bwd"} {
    %dm = stg.mul %dy, %s {phase = "bwd"}
      : (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B, F/tp], bf16>
    stg.yield %dm : !stg.tensor<[B, F/tp], bf16>
  }
  stg.output
}
