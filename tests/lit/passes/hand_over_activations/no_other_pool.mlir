// Where nobody said what the other pool holds, nothing is handed over yet.
// RUN: stagec-opt %s -p hand-over-activations | filecheck %s

!x = !stg.tensor<[B, D], bf16>
stg.program "M" () {
  %v = "test.op"() : () -> !x
  // CHECK: dist.tower_send
  // CHECK-NOT: dist.pool_send
  dist.tower_send "forward" 0 to "text" %v : !x
  stg.output
}
