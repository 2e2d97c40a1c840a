// Under full recomputation what the backward pass does not read is not made again, nor reduced again.
// RUN: stagec-opt %s -p 'recompute-activations{what="full"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, F/tp], bf16>) {
  %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[F/tp], bf16>>
  // CHECK: dist.all_reduce
  // CHECK: stg.yield %{{[^,]*}}, %[[CARRIED:[^ ]*]] : !stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B, F/tp], bf16>
  %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, F/tp], bf16>)
      slice(%v = %w : !stg.stack<"L" x !stg.tensor<[F/tp], bf16>>)
      -> (!stg.tensor<[B, F/tp], bf16>, !stg.stack<"L" x !stg.tensor<[B, F/tp], bf16>>) {
    %e = stg.unary "exp" %h : (!stg.tensor<[B, F/tp], bf16>) -> !stg.tensor<[B, F/tp], bf16>
    %p = stg.contract %e, %v over [F]
      : (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[F/tp], bf16>) -> !stg.tensor<[B], bf16, partial [tp]>
    %r = dist.all_reduce "sum" %p over [tp] : !stg.tensor<[B], bf16, partial [tp]> -> !stg.tensor<[B], bf16>
    %n = stg.add %h, %r
      : (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B, F/tp], bf16>
    stg.yield %n, %e : !stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B, F/tp], bf16>
  }
  // CHECK:     reverse
  // CHECK:     stg.unary "exp" {{.*}}made_by = "recompute-activations"
  // CHECK-NOT: recompute
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, F/tp], bf16>)
      slice(%s = %es : !stg.stack<"L" x !stg.tensor<[B, F/tp], bf16>>)
      -> (!stg.tensor<[B, F/tp], bf16>) attributes {phase = "bwd"} {
    %dm = stg.mul %dy, %s {phase = "bwd"}
      : (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B, F/tp], bf16>) -> !stg.tensor<[B, F/tp], bf16>
    stg.yield %dm : !stg.tensor<[B, F/tp], bf16>
  }
  stg.output
}
